#!/usr/bin/env bash
# Installs programs that development needs besides Python, from Debian's packages if they are missing.
# Arguments: any of browser (to test the page), node (to check its JavaScript), cross (to build and run AArch64 kernels).
set -euo pipefail

install() { # the purpose; the programs; then the packages
    local purpose=$1 programs=$2 missing=() as_root=()
    shift 2
    for program in $programs; do command -v "$program" >/dev/null || missing+=("$program"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "$purpose needs ${missing[*]} on the PATH: please install them" >&2
        exit 1
    fi
    echo "$purpose needs ${missing[*]}: installing $* for the whole system by apt-get" >&2
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get update -qq
    DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@"
}

for what in "$@"; do
    case $what in
        browser) install "testing the page" chromium chromium ;;
        node) install "checking the JavaScript" npm nodejs npm ;;
        cross) install "make cross" "aarch64-linux-gnu-g++ qemu-aarch64" g++-aarch64-linux-gnu qemu-user ;;
        *) echo "dev/install.sh: expected browser, node or cross, found $what" >&2; exit 2 ;;
    esac
done

#!/usr/bin/env bash
# Installs what development needs besides Python, from Debian's packages where it is missing.
# Arguments: any of browser (for the tests of the page), node (for checks of its modules), cross (for kernels of AArch64).
set -euo pipefail

install() { # what needs it; the programs; then the packages
    local purpose=$1 programs=$2 missing=() as_root=()
    shift 2
    for program in $programs; do command -v "$program" >/dev/null || missing+=("$program"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "$purpose needs ${missing[*]} on the PATH: please install" >&2
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
        node) install "checking the pages' modules" npm nodejs npm ;;
        cross) install "make cross" "aarch64-linux-gnu-g++ qemu-aarch64" g++-aarch64-linux-gnu qemu-user ;;
        *) echo "dev/install.sh knows browser, node and cross, found $what" >&2; exit 2 ;;
    esac
done

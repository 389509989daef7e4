#!/usr/bin/env bash
# Installs a cross-compiler and an emulator for AArch64 from Debian's packages, to run the NEON kernels.
set -euo pipefail
command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null && exit 0
if ! command -v apt-get >/dev/null; then
    echo "make cross needs aarch64-linux-gnu-g++ and qemu-aarch64 on the PATH: please install them" >&2
    exit 1
fi
echo "a cross-compiler or qemu-aarch64 is missing: installing them for the whole system by apt-get" >&2
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends g++-aarch64-linux-gnu qemu-user

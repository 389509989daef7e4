#!/usr/bin/env bash
# Tests the kernels of instruction sets that this machine may lack: NEON under qemu-aarch64; the generic build with vectors
# of 16 floats, as wide as AVX-512; and AVX-512 itself, which is compiled, and run if the CPU supports it.
# Arguments: the number of problems, and the seed.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
problems=${1:-150} seed=${2:-1}

build() { # name, then cmake's arguments
    local folder="build/cross/$1"
    shift
    cmake -S tests/kernels -B "$folder" -G Ninja "$@" >/dev/null
    cmake --build "$folder" -- --quiet
}

build neon -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DISA=neon -DSIMD=neon -DFLAGS=-static
build generic16 -DISA=generic16 -DSIMD=generic -DFLAGS=-DLIMELIGHT_LANES=16
if [ "$(uname -m)" = x86_64 ]; then
    build avx512 -DISA=avx512 -DSIMD=avx512 \
        -DFLAGS="-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512 -Wno-maybe-uninitialized"
    if grep -q avx512dq /proc/cpuinfo; then build/cross/avx512/driver "$problems" "$seed"; fi
fi
build/cross/generic16/driver "$problems" "$seed"
qemu-aarch64 build/cross/neon/driver "$problems" "$seed"

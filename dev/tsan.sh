#!/usr/bin/env bash
# Tests the worker pool under the thread sanitizer with calls from several threads at once. The driver does not load OpenMP,
# so jobs run on our own pool. Arguments: the number of problems per thread, and the seed.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" TSAN_OPTIONS=halt_on_error=1
cmake -S tests/kernels -B build/tsan/driver -G Ninja -DISA=generic -DSIMD=generic -DFLAGS="-g -fsanitize=thread" >/dev/null
cmake --build build/tsan/driver -- --quiet
build/tsan/driver/driver "${1:-12}" "${2:-1}" 4

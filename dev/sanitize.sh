#!/usr/bin/env bash
# Runs the tests of the operation on kernels built with the address and undefined-behaviour sanitizers.
# Arguments: the tests to run, instead of tests/ops.
set -euo pipefail
cd "$(dirname "$0")/.."
python="$PWD/.venv/bin/python"
build="$PWD/build/sanitize"
cmake -S . -B "$build" -G Ninja -DLIMELIGHT_SANITIZE=address,undefined -DLIMELIGHT_WERROR=ON -DPython_EXECUTABLE="$python" >/dev/null
cmake --build "$build"

# A copy of the package with the sanitized module; the installed one stays as it is.
rm -rf "$build/package"
mkdir -p "$build/package"
cp -r src/limelight "$build/package/limelight"
rm -f "$build"/package/limelight/_kernels*.so
cp "$build"/_kernels*.so "$build/package/limelight/"

# The interpreter is not built with sanitizers, so their runtime is preloaded; Python's arenas would be reported as leaks.
export LD_PRELOAD="$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libubsan.so)"
export ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 UBSAN_OPTIONS=print_stacktrace=1
# -S, with site-packages on PYTHONPATH: otherwise an editable install comes before PYTHONPATH.
export PYTHONPATH="$build/package:$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
export OMP_NUM_THREADS=2
tests=("$@")
if [ ${#tests[@]} -eq 0 ]; then
  tests=(tests/ops)
fi
"$python" -S -c "import limelight._kernels as k; assert '/sanitize/' in k.__file__, k.__file__"
# Tests of torch.compile, of other builds and of memory gain nothing under the sanitizers.
"$python" -S -m pytest -q -p no:cacheprovider "${tests[@]}" -k "not compiles and not build and not memory"

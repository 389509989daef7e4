#!/usr/bin/env bash
# Builds the source archive and the wheel, and tests each in a fresh environment.
set -euo pipefail
cd "$(dirname "$0")/.."
python="$PWD/.venv/bin/python"
rm -rf dist
# Not isolated: the build uses the tools of .venv instead of downloading them.
"$python" -m build --no-isolation --sdist --wheel --outdir dist . >/dev/null
ls -l dist

try_in_fresh_environment() {
    local archive=$1 folder
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' RETURN
    "$python" -m venv "$folder/venv"
    local pip=("$folder/venv/bin/pip" --disable-pip-version-check install --quiet -c constraints.txt)
    # torch first, so that no other package pulls in a larger build of it
    "${pip[@]}" torch
    case "$archive" in
        *.tar.gz) "${pip[@]}" scikit-build-core nanobind cmake ninja
                  "${pip[@]}" --no-build-isolation "$archive" ;;
        *) "${pip[@]}" "$archive" ;;
    esac
    (
        cd "$folder"
        venv/bin/limelight --version
        venv/bin/limelight worked >/dev/null
        venv/bin/python -c 'import torch, limelight as ll
q = torch.randn(1, 2, 64, 32)
assert ll.explain_choice(q, q, q).impl == "native"
assert torch.allclose(ll.attend(q, q, q, mask=ll.causal()), ll.attend(q, q, q, mask=ll.causal(), impl="reference"), atol=1e-5)
from limelight.views.page.html import FOLDER
assert list(FOLDER.glob("*.js")), "the package lacks the JavaScript of the page"'
    )
    echo "$(basename "$archive") installs and runs"
}

try_in_fresh_environment "$(ls dist/*.whl)"
try_in_fresh_environment "$(ls dist/*.tar.gz)"

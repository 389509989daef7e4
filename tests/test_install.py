"""Without a C++ compiler the package installs, runs on its PyTorch form, and warns about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

WITHOUT_KERNELS = """
import sys, warnings
sys.modules["limelight._kernels"] = None  # as if it had never been built
import torch
import limelight as ll
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    q, k, v = torch.randn(3, 1, 2, 9, 8)
    for _ in range(2):
        out, seen = ll.attend(q, k, v, mask=ll.causal(), lens=ll.Lens(top=2, received=True))
    assert torch.allclose(seen.dense() @ v, out, atol=1e-6)
    model = ll.Decoder(ll.Config.llama(layers=1, width=32, heads=2, vocabulary=11, context=16))
    model(torch.zeros(1, 5, dtype=torch.int64)).sum().backward()
assert ll.explain_choice(q, k, v).impl == "tiled"
print([str(warning.message) for warning in caught])
"""


def test_configuring_without_a_compiler_installs_no_kernels(tmp_path: Path) -> None:
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        [bin_folder / "cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja",
         f"-DCMAKE_MAKE_PROGRAM={bin_folder / 'ninja'}"],
        env=os.environ | {"CXX": "/nowhere/c++"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no C++ compiler found" in done.stderr
    assert not list(tmp_path.rglob("*.cpp*"))


def test_the_package_works_without_its_kernels_and_warns_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_KERNELS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("slower PyTorch form") == 1

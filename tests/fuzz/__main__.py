"""`make fuzz`: random attention calls and damaged files, until the time is up.

    python -m tests.fuzz [--minutes 5] [--seed N]

Prints its seed. A case that fails is saved in tests/fuzz/saved/, which the tests run from then on:
a call by its own seed, a file by its damaged content.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.fuzz import attention, files

SAVED = Path(__file__).parent / "saved"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % (1 << 32))
    options = parser.parse_args()
    print(f"fuzz: seed {options.seed}, {options.minutes:g} minutes", flush=True)
    failures = 0
    counts = {"attention": 0, "sinks": 0, "refusals": 0, "files": 0}
    with tempfile.TemporaryDirectory() as folder:
        readers = files.sources(Path(folder))
        contents = {path: path.read_bytes() for path in readers}
        checks = {
            "attention": attention.check,
            "sinks": attention.check_sinks,
            "refusals": attention.check_refusals,
        }
        end, case = time.monotonic() + 60 * options.minutes, options.seed << 24
        while time.monotonic() < end and failures < 10:
            for kind in counts:
                case += 1
                counts[kind] += 1
                name, damage = f"{kind}-{case}.txt", b""
                try:
                    if kind == "files":
                        path, damage = files.drawn(case, readers, contents)
                        name = f"files-{case}-{'+'.join(path.relative_to(folder).parts)}"
                        files.check(path, damage, readers, contents)
                    else:
                        checks[kind](case)
                except Exception:
                    failures += 1
                    SAVED.mkdir(exist_ok=True)
                    (SAVED / name).write_bytes(damage or traceback.format_exc().encode())
                    print(f"{kind} {case} fails:\n{traceback.format_exc()}", flush=True)
    totals = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"fuzz: {totals}; {failures} failures (seed {options.seed})")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

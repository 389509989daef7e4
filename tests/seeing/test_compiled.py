"""Compiled models are seen and changed as if they were not compiled, and served compiled."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close as close

import limelight as ll

GRAPHS: list[str] = []
"""The functions in the graphs that ran."""


def spy_backend(graph, _):
    """A backend that records which functions of its graph run."""
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]

    def run(*args):
        GRAPHS.extend(names)
        return graph.forward(*args)

    return run


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    GRAPHS.clear()
    with torch.no_grad():
        yield


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


compiled_attend = torch.compile(attend, backend=spy_backend)


class Attention(nn.Module):
    """Attends by a function, compiled or not."""

    def __init__(self, function=attend):
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(16, 48)
        self.function = function

    def forward(self, x):
        parts = self.project(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return self.function(*parts).transpose(1, 2).flatten(2)


class Blocks(nn.Module):
    def __init__(self, change=lambda block: block):
        super().__init__()
        self.blocks = nn.ModuleList(change(Attention()) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def in_place(module: nn.Module) -> nn.Module:
    module.compile(backend=spy_backend)
    return module


def whole(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend=spy_backend, fullgraph=True)


COMPILED = {
    "a function in an attribute": lambda: Attention(torch.compile(attend, backend=spy_backend)),
    "a function of the module's file": lambda: Attention(lambda *qkv: compiled_attend(*qkv)),
    "the module": lambda: whole(Attention()),
    "the module, in place": lambda: in_place(Attention()),
    "its parts": lambda: Blocks(whole),
    "its parts, in place": lambda: Blocks(in_place),
}


@pytest.mark.parametrize("make", COMPILED.values(), ids=COMPILED)
@pytest.mark.parametrize("ran_before", [False, True])
def test_compiled_models_are_seen_as_if_they_were_not_compiled(make, ran_before):
    model, x = make(), torch.randn(1, 5, 16)
    plain = Blocks() if isinstance(model, Blocks) else Attention()
    if ran_before:
        model(x)
        assert GRAPHS
    GRAPHS.clear()
    with ll.watch(plain) as expected:
        output = plain(x)
    with ll.watch(model) as watched:
        close(model(x), output)
    assert not GRAPHS
    assert watched.order == expected.order
    assert len(watched.order) == (2 if isinstance(model, Blocks) else 1)
    for layer in range(len(watched.order)):
        close(watched.seen(layer).dense(), expected.seen(layer).dense())
    model(x)
    assert GRAPHS  # compiled again after the block


def test_a_model_inside_a_compiled_function_is_seen():
    model, x = Attention(), torch.randn(1, 5, 16)
    around = torch.compile(lambda x: model(x) + 1, backend=spy_backend)
    around(x)
    with ll.watch(model) as watched:
        around(x)
    assert watched.order == [""]


def test_a_link_of_a_compiled_model_can_be_cut():
    model, x = whole(Blocks()), torch.randn(1, 5, 16)
    before = model(x)
    link = [ll.Link(layer=0, head=0, query=3, key=1)]
    plain = Blocks()
    with ll.cutting(plain, link):
        expected = plain(x)
    with ll.cutting(model, link):
        close(model(x), expected)
    assert not torch.allclose(before, expected, atol=1e-4)


def test_compilation_is_restored_after_watch_blocks_overlap_in_two_threads():
    model, x = Attention(torch.compile(attend, backend=spy_backend)), torch.randn(1, 5, 16)
    model(x)
    inside, ended = threading.Event(), threading.Event()
    orders: list[list[str]] = []

    def longer():
        with ll.watch(model) as watched:
            inside.set()
            assert ended.wait(30)
            model(x)
        orders.append(watched.order)

    thread = threading.Thread(target=longer)
    with ll.watch(model):
        thread.start()
        assert inside.wait(30)
    ended.set()  # the first block has ended, the other goes on
    thread.join()
    assert orders == [[""]]
    GRAPHS.clear()
    model(x)
    assert GRAPHS


def _run_in_a_process(script: str) -> None:
    """Run code that torch.compile traces: it cannot trace the type checks that the tests add."""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_watch_inside_a_compiled_function_raises_a_clear_error():
    _run_in_a_process("""
import torch, limelight as ll
model = torch.nn.MultiheadAttention(16, 2, batch_first=True)

@torch.compile(backend="eager")
def run(x):
    with ll.watch(model):
        return model(x, x, x)

try:
    run(torch.randn(1, 5, 16))
except ll.LimelightError as error:
    assert "within a function that torch.compile" in str(error)
else:
    raise AssertionError("not refused")
""")


def test_the_first_compilation_of_a_process_within_a_block_warns():
    # The compiler is loaded by the first torch.compile of a process.
    _run_in_a_process("""
import torch, warnings, limelight as ll
model = torch.nn.MultiheadAttention(16, 2, batch_first=True)
x = torch.randn(1, 5, 16)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with ll.watch(model):
        torch.compile(model, backend="eager")(x, x, x)
messages = [str(each.message) for each in caught]
assert sum("first used within a block" in message for message in messages) == 1, messages
with ll.watch(model) as watched:
    torch.compile(model, backend="eager")(x, x, x)
assert watched.order == [""]
""")


def test_serving_replaces_attention_inside_compiled_graphs():
    _run_in_a_process("""
import torch, limelight as ll
import torch.nn.functional as F
ran = []

def spy_backend(graph, _):
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    return lambda *args: (ran.extend(names), graph.forward(*args))[1]

def attend(x):
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)

x = torch.randn(1, 2, 5, 8)
for whole in (False, True):
    torch.compiler.reset()
    compiled = torch.compile(attend, backend=spy_backend, fullgraph=whole)
    expected = compiled(x)
    ran.clear()
    with ll.serving():
        torch.testing.assert_close(compiled(x), expected)
    assert "limelight.attend" in ran, ran
    ran.clear()
    compiled(x)
    assert ran and "limelight.attend" not in ran, ran

# nn.MultiheadAttention is left unchanged
layer = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
x = torch.randn(1, 5, 16)
expected = layer(x)
for whole in (False, True):
    torch.compiler.reset()
    compiled = torch.compile(layer, backend=spy_backend, fullgraph=whole)
    with ll.serving():
        torch.testing.assert_close(compiled(x), expected)
layer.compile(backend="eager")
with ll.serving():
    torch.testing.assert_close(layer(x), expected)
""")

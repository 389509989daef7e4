"""Loading foreign weights by name, and describing a model from its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file
from typer.testing import CliRunner

import limelight as ll
from limelight.cli.app import app
from limelight.errors import FileError, OptionError
from limelight.models.loading.describe import describe

CONFIG = ll.Config.llama(vocabulary=30, width=16, layers=2, heads=4, kv_heads=2, hidden=24)


def test_missing_tensors_are_named_with_the_nearest(tmp_path: Path) -> None:
    model = ll.Decoder(CONFIG)
    state = {name: torch.full_like(tensor, 0.5) for name, tensor in model.state_dict().items()}
    assert ll.compare_weights(model, state).fits
    state["blocks.0.attention.output.weight"] = state.pop("stack.blocks.0.attention.output.weight")
    state["stack.norm.weight"] = torch.ones(17)
    path = tmp_path / "foreign.safetensors"
    save_file(state, path)
    report = ll.compare_weights(model, path)
    assert list(report.missing) == ["stack.blocks.0.attention.output.weight"]
    assert list(report.left_over) == ["blocks.0.attention.output.weight"]
    assert report.misshapen == {"stack.norm.weight": ((17,), (16,))}
    assert report.nearest("stack.blocks.0.attention.output.weight") == (
        "blocks.0.attention.output.weight"
    )
    before = model.state_dict()["head.weight"].clone()
    with pytest.raises(FileError, match=r"missing: .*; left over: .*; misshapen: .* is \(17\)"):
        ll.load_weights(model, path)
    assert torch.equal(model.state_dict()["head.weight"], before)
    state["stack.norm.weight"] = torch.ones(16)
    save_file(state, path)
    rename = {"blocks.0.attention.output.weight": "stack.blocks.0.attention.output.weight"}
    ll.load_weights(model, path, rename=rename)
    assert (model.state_dict()["stack.blocks.0.attention.output.weight"] == 0.5).all()
    with pytest.raises(OptionError, match="rename has 'nothing', which matches none"):
        ll.load_weights(model, path, rename={"nothing": "head.weight"})
    with pytest.raises(FileError, match="a pickle can run any code"):
        ll.compare_weights(model, tmp_path / "model.pt")


def test_info_says_where_each_number_comes_from(tmp_path: Path) -> None:
    description = json.loads(CliRunner().invoke(app, ["info", "minilm", "--json"]).stdout)
    assert (description["family"], description["kind"]) == ("BERT", "encoder")
    assert description["config"]["heads"] == {
        "value": 12, "source": "config.json: num_attention_heads",
    }  # fmt: skip
    assert description["config"]["head_size"] == {"value": 32, "source": "width / heads"}
    assert description["parameters"] == sum(p.numel() for p in ll.load("minilm").parameters())
    smollm2 = describe("smollm2")
    assert smollm2.sources["kv_heads"] == "llama.attention.head_count_kv"
    assert smollm2.formats["Q4_1"] == 210
    first_line = CliRunner().invoke(app, ["info", "smollm2"]).stdout.splitlines()[0]
    assert first_line == "smollm2: Llama decoder"
    config = transformers.MistralConfig(
        vocab_size=20, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    transformers.MistralForCausalLM(config).save_pretrained(tmp_path / "mistral")
    mistral = CliRunner().invoke(app, ["info", str(tmp_path / "mistral")]).stdout
    assert mistral.splitlines()[0].endswith("mistral: Llama decoder, called mistral")
    ll.save(ll.Decoder(CONFIG), tmp_path)
    own = CliRunner().invoke(app, ["info", str(tmp_path)]).stdout
    assert "kv_heads" in own
    assert "limelight.json: kv_heads" in own
    with pytest.raises(FileError, match="no such file or folder"):
        describe(tmp_path / "nothing")

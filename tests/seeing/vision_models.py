"""Tiny vision models of torchvision, timm and diffusers, watched: run by test_pictures.py.

    PYTHONPATH=.venv/vision python tests/seeing/vision_models.py

Outputs are the same with and without `watch`, and the weights are those of the model's own Q and K.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import limelight as ll


def declare_compiled_ops() -> torch.library.Library:
    """Declare the operators that torchvision describes on import and never calls for a ViT.

    Its compiled extension is built for torch with a GPU and does not load with another build.
    """
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def check(
    model: nn.Module,
    run: Callable[[], Tensor],
    weights: dict[str, Callable[[Any, Any], Tensor]],
) -> None:
    """Watch a model: its outputs are unchanged, and these modules have these weights."""
    inputs: dict[str, Any] = {}
    modules = dict(model.named_modules())
    hooks = [
        modules[path].register_forward_pre_hook(
            lambda _, args, options, path=path: inputs.update({path: (args, options)}),
            with_kwargs=True,
        )
        for path in weights
    ]
    with torch.no_grad():
        expected = run()
        for hook in hooks:
            hook.remove()
        with ll.watch(model) as watched:
            output = run()
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-4)
        assert set(watched.order) == set(weights), watched.order
        for path, expected_weights in weights.items():
            reference = expected_weights(modules[path], inputs[path])
            torch.testing.assert_close(watched.seen(path).dense(), reference, atol=1e-5, rtol=1e-4)
    assert torch.equal(run().detach(), expected)  # watch leaves nothing behind


def of_multihead(module: Any, inputs: Any) -> Tensor:
    (x, *_), _ = inputs
    return module(x, x, x, average_attn_weights=False)[1]


def of_timm(module: Any, inputs: Any) -> Tensor:
    x = inputs[0][0]
    query, key, _ = module.qkv(x).unflatten(-1, (3, module.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return (query @ key.mT * module.scale).softmax(-1)


def of_diffusers(module: Any, inputs: Any) -> Tensor:
    args, options = inputs
    x = args[0]
    if x.ndim == 4:
        x = module.group_norm(x.flatten(2)).mT
    memory = options.get("encoder_hidden_states")
    split = (module.heads, -1)
    query = module.to_q(x).unflatten(-1, split).transpose(1, 2)
    key = module.to_k(x if memory is None else memory).unflatten(-1, split).transpose(1, 2)
    return (query @ key.mT * module.scale).softmax(-1)


def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)


def torchvision() -> None:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(32, 8, 2, 4, 32, 64).eval()
    x = torch.randn(1, 3, 32, 32)
    paths = [f"encoder.layers.encoder_layer_{layer}.self_attention" for layer in range(2)]
    check(model, lambda: model(x), dict.fromkeys(paths, of_multihead))
    rec = ll.look(picture(), model=model)
    assert rec.picture is not None
    assert (rec.picture.rows, rec.picture.columns, rec.picture.leading) == (4, 4, 1)


def timm() -> None:
    from timm.models import VisionTransformer

    sizes: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2}
    model = VisionTransformer(**sizes, num_heads=4, num_classes=5).eval()
    x = torch.randn(2, 3, 32, 32)
    check(model, lambda: model(x), {f"blocks.{layer}.attn": of_timm for layer in range(2)})
    rec = ll.look(picture(), model=model)
    assert rec.picture is not None
    assert (rec.picture.rows, rec.picture.columns, rec.picture.leading) == (4, 4, 1)


def dit() -> None:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8,
        patch_size=2, num_embeds_ada_norm=10, norm_num_groups=1,
    ).eval()  # fmt: skip
    x, step, label = torch.randn(1, 4, 8, 8), torch.tensor([3]), torch.tensor([1])
    paths = [f"transformer_blocks.{layer}.attn1" for layer in range(2)]
    check(
        model, lambda: model(x, timestep=step, class_labels=label).sample,
        dict.fromkeys(paths, of_diffusers),
    )  # fmt: skip


def unet() -> None:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=12,
        attention_head_dim=4, norm_num_groups=4,
    ).eval()  # fmt: skip
    x, text = torch.randn(1, 4, 8, 8), torch.randn(1, 5, 12)
    paths = [path for path, _ in model.named_modules() if path.endswith((".attn1", ".attn2"))]
    assert len(paths) == 8
    check(
        model, lambda: model(x, torch.tensor(3), encoder_hidden_states=text).sample,
        dict.fromkeys(paths, of_diffusers),
    )  # fmt: skip


if __name__ == "__main__":
    library = declare_compiled_ops()
    torch.manual_seed(0)
    for check_family in (torchvision, timm, dit, unet):
        check_family()
        print(check_family.__name__)

"""`limelight show picture.png`: what a vision transformer attends to in a picture."""

from __future__ import annotations

from pathlib import Path

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
MOST = 8
"""Patches that are named."""


def show_picture(
    path: Path, model: str, layer: int | None, head: int | None, png: Path, json: bool
) -> None:
    """Write what [CLS] attends to over the picture, and name the patches that made it."""
    from limelight.insight.rollout import rollout
    from limelight.labels import visible
    from limelight.seeing.look import look
    from limelight.seeing.pictures import open_picture
    from limelight.views import save

    recording = look(open_picture(path), model)
    picture = recording.picture
    assert picture is not None
    layer = recording.layer_numbers[-1] if layer is None else layer
    recording.seen(layer)  # refuses a layer or head that there is not, before anything is written
    if head is not None:
        recording.head_position(head)
    save(recording, png, layer, head)
    shares = picture.grid(rollout(recording, 0).shares)
    best = shares.flatten().topk(min(MOST, shares.numel()))
    patches = [
        {"row": place // picture.columns, "column": place % picture.columns, "share": share}
        for place, share in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    if json:
        from json import dumps

        from limelight.views.table import as_json

        grid = {"rows": picture.rows, "columns": picture.columns, "leading": picture.leading}
        answer = as_json(recording) | {"grid": grid, "rollout": shares.tolist(), "patches": patches}
        print(dumps(answer, allow_nan=False))
        return
    who = recording.tokens[0].text
    layers, heads = len(recording.layers), len(recording.head_numbers)
    print(
        f"{visible(recording.model, 40)}, {layers} layers x {heads} heads: "
        f"{picture.rows} x {picture.columns} patches."
    )
    print(f"Most in {who} after all layers (rollout), by row,column:")
    for patch in patches:
        print(f"  {patch['row']},{patch['column']:<4} {patch['share']:.3f}")
    print(f"Wrote {visible(str(png), 200)} ({png.stat().st_size / 1000:,.0f} kB).")

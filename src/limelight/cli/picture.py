"""`limelight show picture.png`: what a vision transformer attends to in a picture."""

from __future__ import annotations

from pathlib import Path

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
PATCHES = 8
"""How many patches are listed."""


def show_picture(
    path: Path, model: str, layer: int | None, head: int | None, png: Path, json: bool
) -> None:
    """Draw what [CLS] attends to over a picture, and list the patches with the largest rollout."""
    from limelight.insight.rollout import rollout
    from limelight.labels import visible
    from limelight.seeing.look import look
    from limelight.seeing.pictures import open_picture
    from limelight.views import save

    recording = look(open_picture(path), model)
    picture = recording.picture
    assert picture is not None
    layer = recording.layer_numbers[-1] if layer is None else layer
    recording.seen(layer)  # raises for an unknown layer or head before anything is written
    if head is not None:
        recording.head_position(head)
    save(recording, png, layer, head)
    shares = picture.grid(rollout(recording, 0).shares)
    best = shares.flatten().topk(min(PATCHES, shares.numel()))
    patches = [
        {"row": index // picture.columns, "column": index % picture.columns, "share": share}
        for index, share in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    if json:
        from json import dumps

        from limelight.views.table import as_json

        grid = {"rows": picture.rows, "columns": picture.columns, "leading": picture.leading}
        document = as_json(recording) | {
            "grid": grid,
            "rollout": shares.tolist(),
            "patches": patches,
        }
        print(dumps(document, allow_nan=False))
        return
    query = recording.tokens[0].text
    layers, heads = len(recording.layers), len(recording.head_numbers)
    print(
        f"{visible(recording.model, 40)}, {layers} layers x {heads} heads: "
        f"{picture.rows} x {picture.columns} patches."
    )
    print(f"Largest shares in {query} after all layers (rollout), by row,column:")
    for patch in patches:
        print(f"  {patch['row']},{patch['column']:<4} {patch['share']:.3f}")
    print(f"Wrote {visible(str(png), 200)} ({png.stat().st_size / 1000:,.0f} kB).")

"""The lines of Python that make the picture on the page."""

from __future__ import annotations

from limelight.explorer.model_store import names_picture


def python_lines(
    model: str, text: str, layer: int, head: int, token: int | None, valued: bool
) -> str:
    """The lines that make the same picture in Python."""
    is_picture = names_picture(text)
    source = 'Image.open("picture.png")' if is_picture else repr(text)
    lines = [
        "import limelight as ll",
        "from limelight.views import save",
        *(["from PIL import Image"] if is_picture else []),
        "",
        f"rec = ll.look({source}, model={model!r})",
        f"weights = rec.weights({layer}, {head})  # rows are queries, columns are keys",
    ]
    if valued:
        lines.append(f"value = rec.steps({layer}, {head})['V'].value")
        lines.append("weights = weights * value.norm(dim=-1)  # weight times length of the value")
    if token is not None:
        lines.append(f"print(rec.top({layer}, {head}, {token}))")
    lines.append(f"save(rec, 'attention.png', layer={layer}, head={head})")
    return "\n".join(lines) + "\n"

"""Measure the roles of the shipped models' heads and write insight/head_labels.json.

    python dev/head_labels.py

This takes about two minutes of processor time.
"""

from __future__ import annotations

import json

from limelight.files import writing
from limelight.insight.head_labels import FILE
from limelight.insight.heads import heads

MODELS = ("minilm", "smollm2")

if __name__ == "__main__":
    labels = {model: heads(model).labels() for model in MODELS}
    lines = [
        f'  "{model}": {{\n'
        + ",\n".join(
            f'    "{head}": {json.dumps(roles, ensure_ascii=False)}' for head, roles in each.items()
        )
        + "\n  }"
        for model, each in labels.items()
    ]
    with writing(FILE) as temporary:
        temporary.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")

"""`import limelight.huggingface` makes `attn_implementation="limelight"` known to transformers.

    import limelight.huggingface
    model = AutoModel.from_pretrained(folder, attn_implementation="limelight")

The model then runs on limelight's attention. With `output_attentions=True` the entries of
`outputs.attentions` are `Seen` objects, which tools can use as if they were the dense weights.
`limelight.watch(model, lens)` records a model that is already loaded.
"""

from __future__ import annotations

from limelight.seeing.watching.huggingface import register

register()

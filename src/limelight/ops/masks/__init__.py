"""Masks as values: which keys a query may see. One rule a file; each is listed here once.

A rule answers everything itself: which links it allows, its part for some heads or one batch row,
the tensors it holds, how the kernel reads it, its JSON, its name. A new rule is a new file, a line
here, and its code in `mask.Code` and the kernel's table (csrc).
"""

# Imported so that each rule is known by its kind when a file names it.
from limelight.ops.masks import (
    anchors,
    band,
    blocks,
    combine,
    dense,
    dilated,
    documents,
    links,
    padding,
)

RULES = (anchors, band, blocks, combine, dense, dilated, documents, links, padding)
"""The modules of all rules."""

"""Masks as values: which keys a query may see. One rule a file; each is listed here once.

A rule implements everything itself: which links it allows, its part for some heads or one batch
row, the tensors it holds, its program for the kernel, its JSON, its name. A new rule is a new file
and a line here; in the kernel it is a file, too, and a line in the table of `csrc/masks/rules.h`.
"""

# Imported so that every rule is registered by its kind when a mask is read from a file.
from limelight.ops.masks import anchors as anchors
from limelight.ops.masks import band as band
from limelight.ops.masks import blocks as blocks
from limelight.ops.masks import combine as combine
from limelight.ops.masks import dense as dense
from limelight.ops.masks import dilated as dilated
from limelight.ops.masks import documents as documents
from limelight.ops.masks import links as links
from limelight.ops.masks import padding as padding

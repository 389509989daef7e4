"""Layers built on the operation."""

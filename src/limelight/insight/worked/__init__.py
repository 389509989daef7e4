"""Worked examples: every step from X to the output, and an audit of printed numbers."""

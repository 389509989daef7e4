"""Worked examples that check themselves: every step from X to the output, and an audit of print."""

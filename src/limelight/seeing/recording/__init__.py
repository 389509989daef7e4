"""Recordings: tokens, what was seen of them, and their files."""

"""Watching models that are not ours."""

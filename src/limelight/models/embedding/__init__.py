"""Sentences as vectors."""

"""Generating text token by token."""

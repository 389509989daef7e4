"""Masks as values: which keys a query may attend to."""

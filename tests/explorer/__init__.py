"""A package, so that its conftest is told from those of its neighbours."""

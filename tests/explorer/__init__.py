"""A package, so that its conftest is distinct from those of its neighbours."""

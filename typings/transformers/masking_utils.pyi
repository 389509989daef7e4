"""How transformers makes its masks; read as a module, so its functions stay untyped."""

from typing import Any

def __getattr__(name: str) -> Any: ...

"""Chat templates: a conversation becomes a prompt, rendered in a child process with limits.

Templates come with checkpoints of unknown origin. Jinja's sandbox keeps them away from Python, but
not from running forever or exhausting memory, so a child process renders them under limits that
the operating system enforces; it takes a quarter of a second.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from limelight.errors import LimelightError, UnavailableError

LIMIT = 1 << 20
"""Characters of the longest template, and of the longest prompt that one may produce."""
CPU_SECONDS, MEMORY = 5, 1 << 30
WALL_SECONDS = 60.0
"""Longer than CPU_SECONDS, for a machine that is busy."""


def render(template: str, values: Mapping[str, Any]) -> str:
    """Render a Jinja template with these values.

    >>> render("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}",
    ...     {"messages": [{"role": "user", "content": "hi"}]})
    '[user] hi'
    >>> render("{{ 1 / 0 }}", {})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    limelight.errors.LimelightError: messages do not fit the chat template: ZeroDivision...
    """
    if len(template) > LIMIT:
        raise LimelightError(
            f"the chat template has {len(template)} characters, expected at most {LIMIT}"
        )
    if not sys.executable:
        raise UnavailableError("chat templates need a Python interpreter to run in: found none")
    try:
        child = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps({"template": template, "values": dict(values)}).encode(),
            capture_output=True,
            timeout=WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LimelightError(f"the chat template ran for {WALL_SECONDS:.0f} s") from None
    if child.returncode < 0:  # killed by a signal
        raise LimelightError(f"the chat template ran for more than {CPU_SECONDS} s")
    try:
        result = json.loads(child.stdout)
    except ValueError:
        reason = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise LimelightError(f"the chat template could not be run: {reason}") from None
    if "error" in result:
        raise LimelightError(result["error"])
    return str(result["text"])


def _limit_resources() -> None:
    """Limit this process; where the system has no limits, the parent's timeout remains."""
    try:
        import resource
    except ModuleNotFoundError:
        return
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _render(template: str, values: dict[str, Any]) -> dict[str, str]:
    from datetime import datetime

    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def fail(message: str) -> None:
        raise TemplateError(message)

    def now(pattern: str) -> str:
        return datetime.now().strftime(pattern)

    def as_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    # The settings of Hugging Face, which templates are written for.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals.update({"raise_exception": fail, "strftime_now": now})  # pyright: ignore
    environment.filters["tojson"] = as_json
    pieces: list[str] = []
    length = 0
    try:
        for piece in environment.from_string(template).generate(**values):
            length += len(piece)
            if length > LIMIT:
                return {"error": f"the chat template makes more than {LIMIT} characters"}
            pieces.append(piece)
    except MemoryError:
        pieces.clear()
        return {"error": f"the chat template needs more memory than {MEMORY >> 20} MB"}
    except Exception as error:  # a template may raise whatever Python does
        reason = f"{type(error).__name__}: {error}"
        return {"error": f"messages do not fit the chat template: {reason[:1000]}"}
    return {"text": "".join(pieces)}


if __name__ == "__main__":
    _limit_resources()
    json.dump(_render(**json.load(sys.stdin)), sys.stdout)

"""Chat templates: a conversation becomes a prompt, in a process of its own and within bounds.

Templates come with checkpoints of unknown origin. Jinja's sandbox keeps them from Python, but not
from running for ever or filling the memory, so a child process renders them under limits that the
system enforces; it takes a quarter of a second.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from limelight.errors import LimelightError, UnavailableError

LIMIT = 1 << 20
"""Characters of the longest template, and of the longest prompt that one may make."""
CPU_SECONDS, MEMORY = 5, 1 << 30
WALL_SECONDS = 60.0
"""More than the processor's, for machines that have other things to do."""


def render(template: str, values: Mapping[str, Any]) -> str:
    """The text that a Jinja template makes of these values.

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
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps({"template": template, "values": dict(values)}).encode(),
            capture_output=True,
            timeout=WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LimelightError(f"the chat template ran for {WALL_SECONDS:.0f} s") from None
    if done.returncode < 0:  # ended by the system
        raise LimelightError(f"the chat template ran for more than {CPU_SECONDS} s")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise LimelightError(f"the chat template could not be run: {reason}") from None
    if "error" in answer:
        raise LimelightError(answer["error"])
    return str(answer["text"])


def _limit() -> None:
    """Bounds on this process; where the system knows none, the parent's clock remains."""
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

    def now(form: str) -> str:
        return datetime.now().strftime(form)

    def as_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    # As Hugging Face sets it up.
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
    _limit()
    json.dump(_render(**json.load(sys.stdin)), sys.stdout)

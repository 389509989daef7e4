"""The page: one HTML file that holds a recording and everything needed to look at it.

The modules in `assets/` are plain ES modules, so that a server can hand them out one by one. Here
they are joined into one script, each in a scope of its own. The header and the part of each head
are script blocks of JSON; a part is read when its head is chosen. The page's security policy
forbids every request, and lets no other script run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "assets"
"""The folder of the modules and the style sheet."""

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|class|const) (\w+))", re.MULTILINE)

_BODY_STYLE = "html,body{margin:0;background:Canvas}html{color-scheme:light dark}"


def page(header: dict[str, Any], parts: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A whole HTML page, piece by piece: the parts of a long recording are not all held at once."""
    script = _script("document")
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_fingerprint(script)}'",
            f"style-src '{_fingerprint(_BODY_STYLE)}'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    title = html.escape(str(header["title"]))
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{title}</title>\n<style>{_BODY_STYLE}</style>\n</head>\n<body>\n"
    )
    yield from _host(header, parts)
    yield f"<script>{script}</script>\n</body>\n</html>\n"


def fragment(header: dict[str, Any], parts: Iterable[dict[str, Any]]) -> str:
    """The same view as a piece of HTML, for a notebook or any other page."""
    return "".join(_host(header, parts)) + f"<script>{_script('host')}</script>"


def _host(header: dict[str, Any], parts: Iterable[dict[str, Any]]) -> Iterator[str]:
    block = '<script type="application/json"'
    yield f"<div>{block}>{safe_json(header)}</script>"
    for part in parts:
        yield f'\n{block} data-head="{part["layer"]}.{part["head"]}">{safe_json(part)}</script>'
    yield "<noscript>This view of attention needs JavaScript.</noscript></div>"


def safe_json(value: object) -> str:
    """JSON that can be embedded in a script element: no character in it can end that element.

    >>> safe_json("</script> & \\u2028")
    '"\\\\u003c/script\\\\u003e \\\\u0026 \\\\u2028"'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


@cache
def _script(keys: str) -> str:
    """All modules as one classic script, which mounts the view on the element before it.

    `keys` names where letter keys are listened to: `document` or `host`.
    """
    names = _ordered("mount")
    parts = [_scoped(name) for name in names]
    style = safe_json((FOLDER / "page.css").read_text(encoding="utf-8"))
    # a classic script knows its own element, so that no id is needed to find its neighbour
    start = (
        "const host=document.currentScript.previousElementSibling;"
        "const read=(script)=>JSON.parse(script.textContent);"
        "const part=async(layer,head)=>"
        'read(host.querySelector(`script[data-head="${layer}.${head}"]`));'
        f'$mount.mount(host,read(host.querySelector("script")),{style},{keys},part);'
    )
    script = '(()=>{"use strict";\n' + "\n".join(parts) + f"\n{start}\n}})();"
    if "</script" in script.lower() or "<!--" in script:
        raise RuntimeError("a page module holds text that would end its script element")
    return script


def _source(name: str) -> str:
    return (FOLDER / f"{name}.js").read_text(encoding="utf-8")


def _ordered(name: str, seen: tuple[str, ...] = ()) -> list[str]:
    """The modules that `name` needs, each before those that need it, `name` last."""
    order: list[str] = []
    for match in _IMPORT.finditer(_source(name)):
        if match[2] in seen:
            raise RuntimeError(f"circular import of page modules: {match[2]}, {name}")
        order += _ordered(match[2], (*seen, name))
    return list(dict.fromkeys([*order, name]))


def _scoped(name: str) -> str:
    """One module as a constant that holds its exports."""
    source = _source(name)
    exported = ",".join(_EXPORT.findall(source))
    source = _IMPORT.sub(lambda match: f"const {{{match[1]}}}=${match[2]};\n", source)
    source = _EXPORT.sub("", source)
    if re.search(r"^(import|export)\b", source, re.MULTILINE):
        raise RuntimeError(f"page/{name}.js imports or exports in a form that cannot be joined")
    return f"const ${name}=(()=>{{\n{source}return{{{exported}}};\n}})();"


def _fingerprint(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

"""A look as a self-contained HTML page with its data, styles and script, which works offline."""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files
from typing import Any

FILES = files("heedful.inspection") / "page"


def page(name: str, title: str, data: dict[str, Any]) -> str:
    """The page `name` with this data, which its script reads as JSON, so that text never becomes markup."""
    parts = {
        "title": escape(title),
        "style": _read("look.css"),
        "script": _read("attention.js") + _read(f"{name}.js"),
        "data": _script_json(data),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read(f"{name}.html"))


def frame(content: str, height: int = 760) -> str:
    """A page for a notebook, in a sandboxed frame isolated from the notebook's styles and scripts."""
    return (
        f'<iframe srcdoc="{escape(content)}" sandbox="allow-scripts" title="look" '
        f'style="width:100%;height:{height}px;border:1px solid #8884;border-radius:8px"></iframe>'
    )


def _read(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def _script_json(data: dict[str, Any]) -> str:
    """JSON that cannot close the script element that contains it."""
    return json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")

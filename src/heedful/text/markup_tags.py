"""Tags as the tree they stand for: which closing tag belongs to which opening one, and what lies inside what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

NAME = re.compile(r"<(/?)([A-Za-z][\w:.-]*)")
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"}
"""HTML elements that never have a closing tag."""


@dataclass
class Element:
    """An opening tag and its closing one, as places in a list of tags; the same place twice for a tag by itself."""

    opening: int
    closing: int
    children: list[Element] = field(default_factory=list)

    def walk(self) -> Iterator[Element]:
        yield self
        for element in self.children:
            yield from element.walk()


@dataclass(frozen=True)
class TagTree:
    """The outermost elements, and whether every tag that needs a partner has one."""

    elements: list[Element]
    balanced: bool


def tag_role(tag: str) -> Literal["opens", "closes", "alone"]:
    """What a tag does. Comments, <br> and <x/> stand alone."""
    found = NAME.match(tag)
    if found is None or tag.endswith("/>"):
        return "alone"
    return "closes" if found[1] else "alone" if found[2].lower() in VOID else "opens"


def parse_tags(tags: Sequence[str]) -> TagTree:
    """A closing tag belongs to the last open one of its name; those left open in between have no partner."""
    outermost: list[Element] = []
    levels = [("", outermost)]
    whole = True
    for place, tag in enumerate(tags):
        found = NAME.match(tag)
        name = found[2].lower() if found else ""
        if tag_role(tag) == "closes" and name in (level for level, _ in levels[1:]):
            while levels[-1][0] != name:
                levels.pop()
                whole = False
            levels.pop()
            levels[-1][1][-1].closing = place
            continue
        element = Element(place, place)
        levels[-1][1].append(element)
        if tag_role(tag) == "opens":
            levels.append((name, element.children))
        whole = whole and tag_role(tag) != "closes"
    return TagTree(outermost, whole and len(levels) == 1)


def tag_structure(tags: Sequence[str]) -> Any:
    """The tree with siblings in no order, equal for texts whose tags mean the same; in order where it is no tree."""

    def of(elements: Sequence[Element]) -> Any:
        return tuple(sorted((tags[e.opening], tags[e.closing], of(e.children)) for e in elements))

    found = parse_tags(tags)
    return of(found.elements) if found.balanced else tuple(tags)

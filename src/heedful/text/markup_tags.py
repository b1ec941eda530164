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
    inside: list[Element] = field(default_factory=list)

    def all(self) -> Iterator[Element]:
        yield self
        for element in self.inside:
            yield from element.all()


@dataclass(frozen=True)
class Tree:
    """The outermost elements, and whether every tag that needs a partner has one."""

    elements: list[Element]
    whole: bool


def role(tag: str) -> Literal["opens", "closes", "alone"]:
    """What a tag does. Comments, <br> and <x/> stand alone."""
    found = NAME.match(tag)
    if found is None or tag.endswith("/>"):
        return "alone"
    return "closes" if found[1] else "alone" if found[2].lower() in VOID else "opens"


def tree(tags: Sequence[str]) -> Tree:
    """A closing tag belongs to the last open one of its name; those left open in between have no partner."""
    outermost: list[Element] = []
    levels = [("", outermost)]
    whole = True
    for place, tag in enumerate(tags):
        found = NAME.match(tag)
        name = found[2].lower() if found else ""
        if role(tag) == "closes" and name in (level for level, _ in levels[1:]):
            while levels[-1][0] != name:
                levels.pop()
                whole = False
            levels.pop()
            levels[-1][1][-1].closing = place
            continue
        element = Element(place, place)
        levels[-1][1].append(element)
        if role(tag) == "opens":
            levels.append((name, element.inside))
        whole = whole and role(tag) != "closes"
    return Tree(outermost, whole and len(levels) == 1)


def shape(tags: Sequence[str]) -> Any:
    """The tree with siblings in no order, equal for texts whose tags mean the same; in order where it is no tree."""

    def of(elements: Sequence[Element]) -> Any:
        return tuple(sorted((tags[e.opening], tags[e.closing], of(e.inside)) for e in elements))

    found = tree(tags)
    return of(found.elements) if found.whole else tuple(tags)

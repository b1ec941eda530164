"""Parse markup tags into a tree: which closing tag belongs to which opening tag, and what they enclose."""

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
    """Indices of an opening tag and its closing tag in a list of tags; equal for a standalone tag."""

    opening: int
    closing: int
    children: list[Element] = field(default_factory=list)

    def walk(self) -> Iterator[Element]:
        """Yield this element and all its descendants."""
        yield self
        for element in self.children:
            yield from element.walk()


@dataclass(frozen=True)
class TagTree:
    """The outermost elements, and whether every tag that needs a partner has one."""

    elements: list[Element]
    balanced: bool


def tag_role(tag: str) -> Literal["opens", "closes", "alone"]:
    """Return what a tag does; comments, <br> and <x/> stand alone."""
    match = NAME.match(tag)
    if match is None or tag.endswith("/>"):
        return "alone"
    return "closes" if match[1] else "alone" if match[2].lower() in VOID else "opens"


def parse_tags(tags: Sequence[str]) -> TagTree:
    """Pair each closing tag with the last open tag of its name; tags left open in between have no partner."""
    outermost: list[Element] = []
    stack = [("", outermost)]
    balanced = True
    for index, tag in enumerate(tags):
        match = NAME.match(tag)
        name = match[2].lower() if match else ""
        if tag_role(tag) == "closes" and name in (open_name for open_name, _ in stack[1:]):
            while stack[-1][0] != name:
                stack.pop()
                balanced = False
            stack.pop()
            stack[-1][1][-1].closing = index
            continue
        element = Element(index, index)
        stack[-1][1].append(element)
        if tag_role(tag) == "opens":
            stack.append((name, element.children))
        balanced = balanced and tag_role(tag) != "closes"
    return TagTree(outermost, balanced and len(stack) == 1)


def tag_structure(tags: Sequence[str]) -> Any:
    """Return a value that is equal for equivalent trees (sibling order ignored); unbalanced: the tags in order."""

    def nested(elements: Sequence[Element]) -> Any:
        return tuple(sorted((tags[e.opening], tags[e.closing], nested(e.children)) for e in elements))

    tree = parse_tags(tags)
    return nested(tree.elements) if tree.balanced else tuple(tags)

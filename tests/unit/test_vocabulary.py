"""The package is written in the field's vocabulary: CONTRIBUTING.md has the glossary, this keeps to it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = sorted(path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
SOURCES = [path for path in PYTHON if path.is_relative_to(ROOT / "src")]
PROSE = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]  # CONTRIBUTING.md lists the words

PRIVATE_WORDS = re.compile(
    r"""\bway\ back\b | \bsomebody\b | \bnobody\b | \bwhoever\b | \bin\ any\ company\b | \bsigns\ of\ life\b
    | \bit\ is\ no\ \w+ | \bkept\ in\ mind\b | \bone\ by\ one\b | \babreast\b | \blays?\ hands\b
    | \btold\ plainly\b | \bin\ the\ midst\b | \bas\ it\ comes\b | \bto\ the\ same\ bits\b
    | \bnewcomers?\b | \bg[ia]ven?\ up\b""",
    re.IGNORECASE | re.VERBOSE,
)
VAGUE_NAMES = {"found", "given", "own", "way", "how", "place", "said", "told", "asked", "wish", "wishes"}


def test_no_private_word_comes_back() -> None:
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in [*PYTHON, *PROSE]
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if PRIVATE_WORDS.search(line)
    ]
    assert not hits, "\n".join(hits)


def test_every_name_says_what_it_holds() -> None:
    vague = {
        str(path.relative_to(ROOT)): names
        for path in PYTHON
        if (names := VAGUE_NAMES.intersection(bound_names(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert not vague


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Variables, parameters, functions, classes and attributes that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def test_no_two_modules_share_a_name() -> None:
    names = Counter(path.stem for path in SOURCES if not path.stem.startswith("__"))
    assert not [name for name, count in names.items() if count > 1]


def test_no_two_public_classes_share_a_name() -> None:
    names = Counter(
        node.name
        for path in SOURCES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [name for name, count in names.items() if count > 1]


def test_unit_tests_mirror_the_package() -> None:
    """A test's name begins with that of a module or folder of the folder that its own mirrors."""
    package, units = ROOT / "src/heedful", ROOT / "tests/unit"
    strays = []
    for path in units.rglob("test_*.py"):
        if path.parent == units:  # about the package as a whole
            continue
        mirrored = package / path.relative_to(units).parent
        parts = [part.stem for part in mirrored.iterdir()] if mirrored.is_dir() else []
        name = path.stem.removeprefix("test_")
        if not any(name == part or name.startswith(f"{part}_") for part in parts):
            strays.append(str(path.relative_to(units)))
    assert not strays

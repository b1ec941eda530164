"""The demo: translate dates in 17 languages to ISO 8601, trained in about 90 seconds on a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from heedful.data.dates_corpus import TARGET_SPANS, DatePair, Dates, dates_corpus, write_dates
from heedful.inference.translator import Translator
from heedful.inspection.attention_alignment import Alignment, align
from heedful.inspection.attention_plot import draw_attention
from heedful.text.word_tokens import TokenizedWords, tokenize_words
from heedful.training.reporting.events import Listener
from heedful.training.run import train

STEPS = 800
LANGUAGES = ("en", "fr", "de", "el", "ru", "es", "pl")
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
    """A translated date and the plot of its attention."""

    source: str
    output: str
    picture: Path


@dataclass(frozen=True)
class DemoResult:
    """The trained model, the attention head that aligns best, and example translations."""

    model: Translator
    head: str
    alignment_error: float
    translations: list[DemoTranslation]


def demo(out: Path, *, steps: int = STEPS, listeners: Sequence[Listener] = (), pictures: int = 4) -> DemoResult:
    """Generate the corpus, train a translator on it, test it on unseen days and plot its attention."""
    corpus = dates_corpus()
    folder = write_dates(out / "data")
    train_files, valid, test = (
        [folder / f"{split}.{side}" for side in ("source", "target")] for split in ("train", "valid", "test")
    )
    model = train(
        "translate",
        *train_files,
        valid=valid,
        test=test,
        out=out / "model",
        settings=SETTINGS,
        steps=steps,
        device="cpu",
        listeners=listeners,
    )
    assert isinstance(model, Translator)
    assert model.alignment is not None, "a transformer has attention heads to align by"
    head = model.alignment.with_changes(units=("characters", "characters"))
    translations = [
        translate_and_plot(model, pair, head, out / f"alignment-{number}.png")
        for number, pair in enumerate(pick_examples(corpus, pictures), 1)
    ]
    return DemoResult(model, head.head_name, alignment_error_rate(model, head, corpus.test[:200]), translations)


def demo_arguments(folder: Path) -> list[str]:
    """Generate the corpus in a folder; the arguments of `heedful train` that train the demo's translator on it."""
    write_dates(folder)
    files = {split: [str(folder / f"{split}.{side}") for side in ("source", "target")] for split in ("train", "valid")}
    valid = [part for file in files["valid"] for part in ("--valid", file)]
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    return ["translate", *files["train"], *valid, *settings, "--steps", str(STEPS), "--device", "cpu"]


def alignment_error_rate(model: Translator, head: Alignment, pairs: Sequence[DatePair]) -> float:
    """Fraction of digits that the head aligns with nothing, or with another part of the date than the right one."""
    texts = [_characters(model, pair.source, pair.target) for pair in pairs]
    wrong = digits = 0
    for pair, reading in zip(pairs, align(model.model, head, texts), strict=True):
        aligned = {target: source for source, target in reading.links}
        for target, source in zip(TARGET_SPANS, pair.spans, strict=True):
            spaces = pair.source[: source[0]].count(" ")  # spaces are not characters of their own
            right = range(source[0] - spaces, source[1] - spaces - pair.source[slice(*source)].count(" "))
            wrong += sum(aligned.get(digit) not in right for digit in range(*target))
            digits += target[1] - target[0]
    return wrong / digits


def _characters(model: Translator, source: str, target: str) -> tuple[TokenizedWords, TokenizedWords]:
    return (
        tokenize_words(source, model.tokenizers[0], "characters"),
        tokenize_words(target, model.tokenizers[-1], "characters"),
    )


def pick_examples(corpus: Dates, count: int) -> list[DatePair]:
    """Test pairs in different languages, with the month in letters."""
    examples: dict[str, DatePair] = {}
    for pair in corpus.test:
        if pair.language in LANGUAGES and any(map(str.isalpha, pair.source)):
            examples.setdefault(pair.language, pair)
    return list(examples.values())[:count]


def translate_and_plot(model: Translator, pair: DatePair, head: Alignment, file: Path) -> DemoTranslation:
    """Translate a date and plot its cross-attention."""
    output = model.translate(pair.source, engine="torch")
    source, target = _characters(model, pair.source, output)
    (reading,) = align(model.model, head, [(source, target)])
    weights = torch.from_numpy(reading.weights[:, :-1])
    title = f"{pair.source} → {output}"
    return DemoTranslation(pair.source, output, draw_attention(weights, target.words, source.words, file, title=title))

"""What a classifier says of texts: their classes, each with its probability (G4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from heedful.config import Config
from heedful.data.batching import length_buckets
from heedful.data.labelled_dataset import EncodedText, encode_example, collate_texts
from heedful.data.table_reader import LIST_SEPARATOR
from heedful.errors import UsageError
from heedful.objectives.classification_loss import class_logits
from heedful.objectives.objective import to_device
from heedful.shapes import Float
from heedful.text.special_token_template import template_for, max_text_tokens, truncated_lengths
from heedful.text.tokenizer import Tokenizer

BATCH_TOKENS = 4096
MULTI_LABEL_THRESHOLD = 0.5
"""From here on a label is given, where a text may have several."""

Text = str | tuple[str, ...]


class ClassifierSettings(Config):
    """What a classifier tells apart, and how it reads."""

    names: tuple[str, ...]
    multi_label: bool = False
    """Whether a text may have any number of labels."""
    texts_per_example: int = Field(default=1, ge=1, le=2)
    """Judged together."""
    max_length: PositiveInt
    """Tokens it reads at once, special ones included."""
    temperature: PositiveFloat = 1.0
    """What logits are divided by, so that probabilities mean what they say."""
    calibration_texts: NonNegativeInt = 0
    """The first validation texts that showed this."""

    @classmethod
    def usual(cls, folder: Path, config: Any) -> ClassifierSettings:
        """Those of a model that came without: as a Hugging Face config.json names them, or by number."""
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        called = described.get("id2label") or {}
        names = tuple(str(called.get(str(number), number)) for number in range(config.classes))
        several = described.get("problem_type") == "multi_label_classification"
        return cls(names=names, several=several, max_length=config.max_length)


@dataclass(frozen=True)
class Label:
    """A class and how likely it is."""

    name: str
    probability: float


@dataclass(frozen=True)
class ClassifiedText:
    """All classes of a text, the likeliest first."""

    text: Text
    ranking: tuple[Label, ...]
    multi_label: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[Label, ...]:
        """Those given to the text: the likeliest, or, where it may have several, all that are likelier than not."""
        if not self.multi_label:
            return self.ranking[:1]
        return tuple(label for label in self.ranking if label.probability >= MULTI_LABEL_THRESHOLD)

    @property
    def label(self) -> str:
        return LIST_SEPARATOR.join(label.name for label in self.labels)

    def to_json(self, top: int | None = None) -> dict[str, Any]:
        texts = self.text if isinstance(self.text, str) else list(self.text)
        found: dict[str, Any] = {"text": texts, "label": self.label}
        if self.multi_label:
            found["label"] = [label.name for label in self.labels]
        found["probabilities"] = {label.name: label.probability for label in self.ranking[:top]}
        return found | ({"warnings": list(self.warnings)} if self.warnings else {})


def classify(model: Any, tokenizer: Tokenizer, classes: ClassifierSettings, texts: Sequence[Text]) -> list[ClassifiedText]:
    """Every text with its classes; a blank one has none, and of one that is too long the answer says so."""
    real = [place for place, text in enumerate(texts) if (text if isinstance(text, str) else "".join(text)).strip()]
    parts = [apart(texts[place], classes.texts_per_example) for place in real]
    found: list[ClassifiedText] = [ClassifiedText(text, (), classes.multi_label) for text in texts]
    if real:
        rows, warnings = framed_rows(model, tokenizer, classes, parts)
        said = class_probabilities(model, rows, classes).tolist()
        for place, row, words in zip(real, said, warnings, strict=True):
            found[place] = ClassifiedText(texts[place], ranked(classes.names, row), classes.multi_label, words)
    return found


def apart(text: Text, texts: int) -> tuple[str, ...]:
    """As many texts as are judged together: a pair, or two between which there is a tab."""
    parts = tuple(text.split("\t", 1) if texts == 2 else [text]) if isinstance(text, str) else text
    if len(parts) != texts:
        wanted = "two texts together: give a pair, or a tab between them" if texts == 2 else "one text at a time"
        raise UsageError(f"this classifier judges {wanted}; got {text!r:.60}")
    return parts


def framed_rows(
    model: Any, tokenizer: Tokenizer, classes: ClassifierSettings, texts: Sequence[tuple[str, ...]]
) -> tuple[list[EncodedText], list[tuple[str, ...]]]:
    """Texts as the model reads them, and for each what it will not see."""
    frame = template_for(model.config.family, tokenizer)
    columns = [tokenizer.encode(list(side)) for side in zip(*texts, strict=True)]
    most = max_text_tokens(classes.max_length, classes.texts_per_example)
    rows: list[EncodedText] = []
    warnings: list[tuple[str, ...]] = []
    for parts in zip(*columns, strict=True):
        kept = truncated_lengths([len(ids) for ids in parts], most)
        over = sum(map(len, parts)) - sum(kept)
        rows.append(encode_example(frame, [ids[:length] for ids, length in zip(parts, kept, strict=True)]))
        warnings.append((f"the last {over:,} of {over + sum(kept):,} tokens were not read",) if over else ())
    return rows, warnings


def class_probabilities(
    model: Any, rows: Sequence[EncodedText], classes: ClassifierSettings, progress: Callable[[int], object] = lambda _: None
) -> Float[torch.Tensor, "texts classes"]:
    """P(class | text) of each row."""
    return logits_to_probabilities(classifier_logits(model, rows, progress), classes.multi_label, classes.temperature)


def logits_to_probabilities(
    logits: Float[torch.Tensor, "texts classes"], several: bool, temperature: float = 1.0
) -> Float[torch.Tensor, "texts classes"]:
    """softmax(z / T); or, of several labels, σ(z / T)        Guo 2017, eq. 9"""
    scaled = logits / temperature
    return scaled.sigmoid() if several else scaled.softmax(-1)


@torch.inference_mode()
def classifier_logits(
    model: Any, rows: Sequence[EncodedText], progress: Callable[[int], object] = lambda _: None
) -> Float[torch.Tensor, "texts classes"]:
    """What a model makes of each row; rows of like length are read together."""
    found = torch.zeros(len(rows), model.config.classes)
    for bucket in length_buckets([len(ids) for ids, _ in rows], BATCH_TOKENS):
        logits = class_logits(model, to_device(collate_texts([rows[place] for place in bucket]), model.table.weight.device))
        found[bucket] = logits.cpu()
        progress(len(bucket))
    return found


def ranked(names: Sequence[str], probabilities: Sequence[float]) -> tuple[Label, ...]:
    """Classes by probability; of equals the first."""
    pairs = zip(names, probabilities, strict=True)
    return tuple(Label(name, p) for name, p in sorted(pairs, key=lambda pair: -pair[1]))

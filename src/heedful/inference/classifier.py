"""Classifier: class probabilities of texts, or of pairs of texts (G4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Unpack, overload

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from heedful.config import Config
from heedful.data.batching import length_buckets
from heedful.data.labeled_dataset import EncodedText, collate_texts, encode_example
from heedful.data.labeled_reader import is_label
from heedful.data.table_reader import LIST_SEPARATOR
from heedful.errors import CheckpointError, UsageError, nearest
from heedful.generation.streaming import FIRST_BATCH
from heedful.inference.finite_outputs import require_finite
from heedful.inference.stored_model import StoredSettings
from heedful.inference.text_arguments import require_unicode, text_batches
from heedful.inference.trained_model import TrainedModel
from heedful.inspection.text_pass import Output, TextPass
from heedful.interventions.kinds import Intervention, as_interventions
from heedful.model_files import TASK_FILE, ModelFiles
from heedful.models.decoder import Decoder
from heedful.models.encoder import Encoder
from heedful.objectives.classification_loss import class_logits
from heedful.objectives.objective import to_device
from heedful.shapes import Float
from heedful.text.special_token_template import max_text_tokens, template_for, truncated_lengths
from heedful.text.token_rows import TokenRow, build_row
from heedful.text.tokenizer import Tokenizer, TokenSpan

BATCH_TOKENS = 4096
MULTI_LABEL_THRESHOLD = 0.5
"""Probability from which a label is assigned by a multi-label classifier."""

Text = str | tuple[str, ...]


class ClassifierSettings(Config):
    """Class names, input format and calibration of a classifier: what task.json holds."""

    names: tuple[str, ...]
    multi_label: bool = False
    """Whether a text may have any number of labels."""
    texts_per_example: int = Field(default=1, ge=1, le=2)
    max_length: PositiveInt
    """Longest input in tokens, special tokens included."""
    temperature: PositiveFloat = 1.0
    """Logits are divided by this, fitted for calibrated probabilities."""
    calibration_texts: NonNegativeInt = 0
    """The temperature was fitted on this many of the validation texts, evenly spaced."""

    @classmethod
    def default(cls, config: Any, folder: Path | None = None) -> ClassifierSettings:
        """Settings for a model without stored ones: class names from a Hugging Face config.json, or numbers."""
        described = ModelFiles(folder).config if folder else {}
        labels = described.get("id2label") or {}
        if not isinstance(labels, dict):
            raise CheckpointError(f"{folder}: id2label must be an object of class names, got {labels!r:.60}")
        return cls(
            names=tuple(str(labels.get(str(index), index)) for index in range(config.classes)),
            multi_label=described.get("problem_type") == "multi_label_classification",
            max_length=config.max_length,
        )


@dataclass(frozen=True)
class Label:
    """A class name and its probability."""

    name: str
    probability: float


@dataclass(frozen=True)
class ClassifiedText:
    """A text and its classes, most probable first."""

    text: Text
    ranking: tuple[Label, ...]
    multi_label: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[Label, ...]:
        """The assigned labels: the most probable one or, if multi-label, all with a probability of at least 0.5."""
        if not self.multi_label:
            return self.ranking[:1]
        return tuple(label for label in self.ranking if label.probability >= MULTI_LABEL_THRESHOLD)

    @property
    def label(self) -> str:
        """The names of the assigned classes, joined as a table lists them."""
        return LIST_SEPARATOR.join(label.name for label in self.labels)

    def to_json(self, top: int | None = None) -> dict[str, Any]:
        result = {
            "text": self.text if isinstance(self.text, str) else list(self.text),
            "label": [label.name for label in self.labels] if self.multi_label else self.label,
            "probabilities": {label.name: label.probability for label in self.ranking[:top]},
        }
        return result | ({"warnings": list(self.warnings)} if self.warnings else {})


class Classifier(TrainedModel):
    """A text classifier."""

    model: Encoder | Decoder
    kind = "a classifier"
    settings_files: ClassVar = {**TrainedModel.settings_files, "settings": (TASK_FILE, ClassifierSettings)}

    def __init__(
        self,
        model: Encoder | Decoder,
        tokenizers: tuple[Tokenizer, ...] = (),
        folder: Path | None = None,
        *,
        settings: ClassifierSettings | None = None,
        **stored: Unpack[StoredSettings],
    ) -> None:
        super().__init__(model, tokenizers, folder, **stored)
        self.settings = settings or ClassifierSettings.default(model.config, folder)
        names, classes = self.settings.names, model.config.classes
        if len(names) != classes:
            raise CheckpointError(
                f"{folder or 'the model'} has {classes:,} classes, but {len(names):,} names of classes"
            )
        occurrences = Counter(names)
        for name in names:
            if occurrences[name] > 1 or not is_label(name):
                problem = "it is not one short line" if occurrences[name] == 1 else "another one has the same name"
                raise CheckpointError(f"{folder or 'the model'} has a class named {name!r:.60}: {problem}")

    @overload
    def classify(  # type: ignore[overload-overlap]
        self, text: str | tuple[str, ...], *, interventions: Sequence[Intervention] | None = None
    ) -> ClassifiedText: ...
    @overload
    def classify(
        self,
        text: Iterable[str] | Iterable[tuple[str, ...]],
        *,
        interventions: Sequence[Intervention] | None = None,
    ) -> list[ClassifiedText]: ...
    def classify(
        self, text: Text | Iterable[Text], *, interventions: Sequence[Intervention] | None = None
    ) -> ClassifiedText | list[ClassifiedText]:
        """Classify a text, or a list of texts; a pair of texts classified together is a tuple."""
        checked = as_interventions(interventions)
        if isinstance(text, str | tuple):
            return self.intervened(self._classify, [text], checked)[0]
        if not isinstance(text, Iterable) or isinstance(text, bytes | Mapping):
            raise UsageError(f"expected a text or a list of texts, got {text!r:.60}")
        return list(self.intervened(self._classify, list(text), checked))

    def iter_classify(
        self, texts: Iterable[str | None], *, interventions: Sequence[Intervention] | None = None
    ) -> Iterator[ClassifiedText]:
        """Classify a stream of texts lazily and in order. None in the stream flushes what came before."""
        checked = as_interventions(interventions)
        batches = text_batches(texts, FIRST_BATCH)
        return (result for batch in batches for result in self.intervened(self._classify, batch, checked))

    def text_pass(
        self, text: str, target: str | None = None, *, interventions: Sequence[Intervention] | None = None
    ) -> TextPass:
        """The pass over a text; the output is the class named `target`, or the most probable one."""
        parts = split_text(text, self.settings.texts_per_example)
        if not parts:
            raise UsageError("a blank text has no class")
        label = self.classify(text, interventions=interventions).ranking[0].name if target is None else target
        if label not in self.settings.names:
            raise UsageError(f"this classifier has no class '{label}'; {nearest(label, self.settings.names)}")
        row = self.input_row(text)
        segments = template_for(self.model.config.family, self.tokenizer).segment_ids(
            *self.tokenizer.encode(list(parts))
        )[: len(row)]
        return TextPass(
            "sequence_class", row, (Output(0, self.settings.names.index(label), label),), segments=tuple(segments)
        )

    def scored_passes(self, example: str | tuple[str, str]) -> list[TextPass]:
        """The pass over a text whose labels are given: of several labels, as a table lists them."""
        if isinstance(example, str) or not self.independent_labels:
            return super().scored_passes(example)
        text, labels = example
        names = [label for label in labels.split(LIST_SEPARATOR) if label]
        passes = [self.text_pass(text, label) for label in names or self.settings.names[:1]]
        return [replace(passes[0], outputs=tuple(text_pass.outputs[0] for text_pass in passes[: len(names)]))]

    @property
    def independent_labels(self) -> bool:
        """Whether a text can have several labels."""
        return self.settings.multi_label

    def output_probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """The calibrated probabilities of the classes."""
        return logits_to_probabilities(logits, self.settings.multi_label, self.settings.temperature)

    def label_texts(self, text_pass: TextPass, labels: Sequence[int]) -> list[str]:
        """The names of the classes."""
        return [self.settings.names[label] for label in labels]

    def input_row(self, text: str) -> TokenRow:
        """The tokens of a text, or of two texts, with the special tokens around them."""
        parts = split_text(text, self.settings.texts_per_example)
        joined, spans, start = "\t".join(parts), [], 0
        for part in parts:
            shifted = [TokenSpan(t.token, t.start + start, t.end + start) for t in self.tokenizer.spans(part)]
            spans.append(shifted)
            start += len(part) + 1
        _, warnings = _encode(self.model, self.tokenizer, self.settings, [parts])
        if warnings[0]:
            raise UsageError(f"{text!r:.60}: {warnings[0][0]}; look at a part of it")
        template = template_for(self.model.config.family, self.tokenizer)
        return build_row(joined, template.wrap(*spans), self.tokenizer, "words")

    def _classify(self, texts: Sequence[Text]) -> list[ClassifiedText]:
        """Classify each text; a blank one has no class."""
        settings, tokenizer = self.settings, self.tokenizer
        pairs = [split_text(text, settings.texts_per_example) for text in texts]
        results = [ClassifiedText(text, (), settings.multi_label) for text in texts]
        indices = [index for index, pair in enumerate(pairs) if pair]
        rows, warnings = _encode(self.model, tokenizer, settings, [pairs[index] for index in indices])
        logits = require_finite(classifier_logits(self.model, rows))
        probabilities = logits_to_probabilities(logits, settings.multi_label, settings.temperature).tolist()
        for index, row, notes in zip(indices, probabilities, warnings, strict=True):
            results[index] = ClassifiedText(texts[index], _ranking(settings.names, row), settings.multi_label, notes)
        return results


def split_text(text: object, count: int) -> tuple[str, ...]:
    """The one or two texts that are classified together: a tuple, or two texts separated by a tab; () if blank."""
    parts = text if isinstance(text, tuple) else (text,)
    if not all(isinstance(part, str) for part in parts):
        raise UsageError(f"every text must be a string or a pair of strings, got {text!r:.60}")
    for part in parts:
        require_unicode(part)
    if not "".join(parts).strip():
        return ()
    parts = tuple(text.split("\t", 1)) if isinstance(text, str) and count == 2 else parts
    if len(parts) != count:
        expected = "pairs of texts: pass a tuple, or separate them with a tab" if count == 2 else "single texts"
        raise UsageError(f"this classifier takes {expected}; got {text!r:.60}")
    return parts


def _encode(
    model: Encoder | Decoder, tokenizer: Tokenizer, settings: ClassifierSettings, texts: Sequence[tuple[str, ...]]
) -> tuple[list[EncodedText], list[tuple[str, ...]]]:
    """Encode texts, truncated to the model's maximum; returns the rows, and for each its warnings."""
    template = template_for(model.config.family, tokenizer)
    columns = [tokenizer.encode(list(side)) for side in zip(*texts, strict=True)]
    limit = max_text_tokens(settings.max_length, settings.texts_per_example)
    rows: list[EncodedText] = []
    warnings: list[tuple[str, ...]] = []
    for parts in zip(*columns, strict=True):
        lengths = truncated_lengths([len(ids) for ids in parts], limit)
        total, excess = sum(map(len, parts)), sum(map(len, parts)) - sum(lengths)
        rows.append(encode_example(template, [ids[:length] for ids, length in zip(parts, lengths, strict=True)]))
        warnings.append((f"the last {excess:,} of {total:,} tokens were not read",) if excess else ())
    return rows, warnings


def logits_to_probabilities(
    logits: Float[torch.Tensor, "texts classes"], multi_label: bool, temperature: float = 1.0
) -> Float[torch.Tensor, "texts classes"]:
    """softmax(z / T); multi-label: σ(z / T)        Guo 2017, eq. 9"""
    scaled = logits / temperature
    return scaled.sigmoid() if multi_label else scaled.softmax(-1)


@torch.inference_mode()
def classifier_logits(
    model: Encoder | Decoder, rows: Sequence[EncodedText], progress: Callable[[int], object] = lambda _: None
) -> Float[torch.Tensor, "texts classes"]:
    """Logits of each encoded text; texts of similar length share a batch."""
    result = torch.zeros(len(rows), model.config.classes)
    for bucket in length_buckets([len(ids) for ids, _ in rows], BATCH_TOKENS):
        batch = to_device(collate_texts([rows[index] for index in bucket]), model.device)
        result[bucket] = class_logits(model, batch).cpu()
        progress(len(bucket))
    return result


def _ranking(names: Sequence[str], probabilities: Sequence[float]) -> tuple[Label, ...]:
    """Classes by probability; ties keep their order."""
    pairs = zip(names, probabilities, strict=True)
    return tuple(Label(name, p) for name, p in sorted(pairs, key=lambda pair: -pair[1]))

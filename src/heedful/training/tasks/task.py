"""What a task is: all that differs between learning to translate, to write, to fill a gap or to name a class.

Reading, planning, training, resuming, scoring and reporting are written once, elsewhere. They ask these questions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from heedful.config import Config
from heedful.data.batching import Batches
from heedful.data.dataset_preparation import Prepared, Split, learn_from_text, prepare_text
from heedful.data.doctor_report import CorpusKind, Report
from heedful.data.stage_progress import Stages
from heedful.inference.trained import Trained
from heedful.models.model_config import ModelConfig
from heedful.objectives.objective import Objective
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.training.defaults import Appetite, Situation
from heedful.training.recipe import Recipe
from heedful.training.trainer import Evaluation


@dataclass(frozen=True)
class TrainingComponents:
    """What the loop learns from, and how the model is judged on the way."""

    objective: Objective
    train: Batches
    valid: Batches
    evaluate: Callable[[nn.Module], Evaluation]
    generated_texts: int = 0
    """Texts the model writes at each evaluation, besides predicting the validation text."""
    generate: Callable[[Any, int, int | None], object] = lambda model, texts, at_most: None
    """Writes so many of them, cut off after `at_most` tokens: to find out how long it takes."""


class Task(ABC):
    """One task. What is not abstract suits most."""

    name: ClassVar[str]
    corpus_kind: ClassVar[CorpusKind]
    """How the doctor reads its files."""
    held_out_files: ClassVar[tuple[str, ...]] = ("valid", "test")
    """Files of the same kind, of which nothing should be among what is trained on."""
    description: ClassVar[str]
    """A model that …"""
    score_note: ClassVar[str]
    """What to know about its scores."""
    example_arguments: ClassVar[str] = '"…"'
    """What a model of it is called with, in Python."""
    sample_columns: ClassVar[tuple[str, ...]]
    """The columns of its samples."""
    selection_metric: ClassVar[str] = "loss"
    """What is judged on the way, to keep the best model."""
    loss_unit: ClassVar[str] = "token"
    """What its loss is the mean over."""
    appetite: ClassVar[Appetite]
    supports_distributed: ClassVar[bool] = True
    """Whether several processes can train one model."""
    pretrained_families: ClassVar[tuple[str, ...]] = ()
    """Families that a model of another task may lend to this one (`--from`)."""
    head_prefixes: ClassVar[tuple[str, ...]] = ()
    """Names, as they begin, of the weights that are then new."""

    @abstractmethod
    def corpus_size(self, report: Report) -> str:
        """How much there is to learn from, in words."""

    @abstractmethod
    def train_tokenizers(self, recipe: Recipe, report: Report, stages: Stages) -> tuple[Tokenizer, ...]:
        """Tokenizers from the training text."""

    @abstractmethod
    def prepare_data(
        self, recipe: Recipe, tokenizers: tuple[Tokenizer, ...], characters: int, stages: Stages
    ) -> Prepared:
        """The text as stores of ids. Stores that are there are opened; new ones need its number of characters."""

    @abstractmethod
    def validation_fraction(self, characters: int) -> float:
        """The share to validate on: enough to tell two models apart, and never so much that judging takes minutes."""

    @abstractmethod
    def vocabulary_size(self, characters: int) -> int:
        """Grows slowly with the text: common words whole, rare ones in pieces."""

    def tokenizer_defaults(self, characters: int) -> dict[str, Any]:
        """What else is chosen about the tokenizer, unless it is said."""
        return {}

    @abstractmethod
    def model_defaults(self, situation: Situation) -> dict[str, Any]:
        """The model's configuration, but for its vocabulary."""

    @abstractmethod
    def training_defaults(self, situation: Situation, model: dict[str, Any]) -> dict[str, Any]:
        """Rates and regularisation; `steps` follow once a step has been timed."""

    def max_epochs(self, situation: Situation) -> int:
        """Times after which reading the text again teaches nothing more."""
        return self.appetite.most_epochs

    def head_settings(self, data: Prepared) -> dict[str, Any]:
        """Settings of the model that the data decide, whatever else is said."""
        return {}

    def finetune_settings(self, body: ModelConfig) -> dict[str, Any]:
        """Settings for a model that begins with this body."""
        return {}

    def reinitialized_prefixes(self, start: Trained, data: Prepared) -> tuple[str, ...]:
        """Names, as they begin, of weights of `start` that would fit but mean something else."""
        return ()

    def task_settings(self, recipe: Recipe, data: Prepared) -> Config | None:
        """What is kept beside the model, in task.json: see `heedful.inference.trained.KEPT`."""
        return None

    def setup_summary(self, recipe: Recipe, data: Prepared) -> list[str]:
        """What else to say before the first step."""
        return []

    def split_size(self, split: Split) -> str:
        """How much a part of the data is."""
        tokens = sum(int(side.lengths.sum()) for side in split.sides)
        return f"{split.examples:,} examples, {tokens:,} tokens, {split.bytes:,} bytes predicted"

    def derived_model_settings(self, settings: dict[str, Any], data: Prepared) -> dict[str, Any]:
        """Settings of the model that follow from other settings, or from the data, unless they are said."""
        return {}

    @abstractmethod
    def training_components(self, recipe: Recipe, data: Prepared, device: torch.device) -> TrainingComponents:
        """Batches, objective and evaluation."""

    @abstractmethod
    def evaluate_files(self, trained: Trained, files: Sequence[Path], **options: Any) -> dict[str, Any]:
        """Every score of a model on held-out files."""

    @abstractmethod
    def evaluate_split(self, trained: Trained, split: Split, stages: Stages) -> dict[str, Any]:
        """The same for text already prepared: validation, where there is no test."""

    def calibrate(self, best: Trained, data: Prepared, stages: Stages) -> None:
        """What is worth knowing of the model that training ended with: measured, told to it, kept in its folder."""
        return

    def card_section(self, best: Trained, scores: dict[str, Any]) -> str:
        """The same as a part of the card."""
        return ""

    def plots(self, scores: dict[str, Any], folder: Path) -> dict[str, Path]:
        """What is drawn of the scores, by what it shows."""
        return {}

    @abstractmethod
    def headline(self, scores: dict[str, Any]) -> str:
        """The scores a person asks for first."""

    @abstractmethod
    def samples(self, best: Trained, split: Split) -> list[tuple[str, ...]]:
        """What the model makes of validation text."""


class TextTask(Task):
    """A task of running text: what it counts, learns its vocabulary from and encodes."""

    kind = "text"

    def corpus_size(self, found: Report) -> str:
        return f"{found.documents:,} document(s)"

    def train_tokenizers(self, recipe: Recipe, found: Report, stages: Stages) -> tuple[Tokenizer, ...]:
        kept = found.characters * (1 - held_out_fraction(recipe))
        return (learn_from_text(characters=kept, **tokenizer_arguments(recipe, found.characters, stages)),)

    def prepare_data(
        self, recipe: Recipe, tokenizers: tuple[Tokenizer, ...], characters: int, stages: Stages
    ) -> Prepared:
        return prepare_text(tokenizer=tokenizers[0], characters=characters, **preparation_arguments(recipe, stages))

    def validation_fraction(self, characters: int) -> float:
        return min(0.1 if characters < 10_000_000 else 0.02, 5_000_000 / characters)


def tokenizer_arguments(recipe: Recipe, characters: int, stages: Stages) -> dict[str, Any]:
    """What learning a tokenizer takes, whatever the task: of so many characters a share that is enough."""
    text = recipe.tokenizer
    return {
        "files": [Path(file) for file in recipe.data.train],
        "config": TokenizerConfig(**{name: getattr(text, name) for name in TokenizerConfig.model_fields}),
        "share": text.sample / max(1, characters),
        "on_bad_line": recipe.data.on_bad_line,
        "stages": stages,
    }


def preparation_arguments(recipe: Recipe, stages: Stages) -> dict[str, Any]:
    """What encoding the text takes, whatever the task."""
    data = recipe.data
    train, valid = ([Path(file) for file in files] for files in (data.train, data.valid))
    return {
        "train": train,
        "valid": valid,
        "held_out": data.held_out,
        "on_bad_line": data.on_bad_line,
        "stages": stages,
    }


def held_out_fraction(recipe: Recipe) -> float:
    """The share of the training files that is kept for validation."""
    return 0.0 if recipe.data.valid else recipe.data.held_out

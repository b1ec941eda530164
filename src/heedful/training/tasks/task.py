"""The `Task` interface: everything that differs between translation, language modeling, classification, …

Reading, forecasting, training, resuming and reporting are written once, elsewhere, and call these methods.
A new task is one module of this folder with a subclass of `Task` and an entry in `TASKS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple

import torch
from typing_extensions import TypeVar

from heedful.config import Config
from heedful.data.batching import Batches, evenly_spaced
from heedful.data.corpus_files import CorpusFiles
from heedful.data.dataset import PreparedData, Split
from heedful.data.doctor_report import CorpusKind, CorpusReport
from heedful.data.progress import StartProgress
from heedful.data.text_dataset import prepare_text, train_text_tokenizer
from heedful.errors import UsageError
from heedful.evaluation.baselines import unigram_loss
from heedful.inference.trained_model import TrainedModel
from heedful.models.model_config import ModelConfig
from heedful.objectives.objective import Objective
from heedful.quantities import count
from heedful.syntax import argument
from heedful.text.tokenizer import Tokenizer
from heedful.training.defaults import ScalingRule, TrainingConditions
from heedful.training.recipe import Recipe
from heedful.training.tasks import EvaluationOptions
from heedful.training.trainer import Evaluation

Tokenizers = tuple[Tokenizer, ...]
"""One tokenizer, or those of source and target."""
ModelT = TypeVar("ModelT", bound=TrainedModel, default=Any)
"""The class of a task's trained models."""


@dataclass(frozen=True)
class TrainingComponents:
    """The objective, batches and validation function of a task, which the trainer runs."""

    objective: Objective
    train: Batches
    valid: Batches
    evaluate: Callable[[Any], Evaluation]
    """Scores a model of the task's family on the validation set."""
    generated_texts: int = 0
    """Texts generated at each evaluation, in addition to the validation loss."""
    generate: Callable[[Any, int, int | None], object] = lambda model, texts, at_most: None
    """Generates that many texts of at most `at_most` tokens; the forecast times it."""


class MainScore(NamedTuple):
    """The main score of a model, which its verdict compares."""

    key: str
    label: str
    form: str
    """Format of the value."""
    higher_is_better: bool = True

    def formatted(self, value: float) -> str:
        return f"{self.label} {value:{self.form}}"


EXPLAINED_TOKENS = 32
"""Tokens of running text in which a word is explained."""


class Task(ABC, Generic[ModelT]):
    """The extension point for tasks. Methods that are not abstract have a default that suits most tasks."""

    name: ClassVar[str]
    corpus_kind: ClassVar[CorpusKind]
    """The file format, as the data doctor reads it."""
    held_out_files: ClassVar[tuple[str, ...]] = ("valid", "test")
    """Entries of [data] that are checked for overlap with the training text."""
    description: ClassVar[str]
    """Completes "a model that …" in the model card."""
    score_note: ClassVar[str]
    """How to read the scores, for the model card."""
    example_arguments: ClassVar[str] = '"…"'
    """Arguments of the Python call shown in the model card."""
    sample_columns: ClassVar[tuple[str, ...]]
    """Column headers of the samples."""
    main_score: ClassVar[MainScore | None] = None
    """None: nothing is scored without a benchmark."""
    selection_metric: ClassVar[str] = "loss"
    """The validation metric that selects the best checkpoint."""
    loss_unit: ClassVar[str] = "token"
    """The unit the loss is averaged over."""
    scaling_rule: ClassVar[ScalingRule]
    vocabulary_factor: ClassVar[int]
    """Relative size of the default vocabulary: smaller where the output layer runs at many tokens."""
    has_recurrent_model: ClassVar[bool] = False
    supports_distributed: ClassVar[bool] = True
    """Whether several processes can train one model (data parallel)."""
    pretrained_families: ClassVar[tuple[str, ...]] = ()
    """Model families that this task can be fine-tuned from (`--from`)."""
    head_prefixes: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the weights that may be missing from the pretrained model: they are initialized randomly."""

    # Data

    @abstractmethod
    def corpus_size(self, report: CorpusReport) -> str:
        """The size of the training text, for the log."""

    @abstractmethod
    def train_tokenizers(self, recipe: Recipe, files: CorpusFiles, characters: int) -> Tokenizers:
        """Train one tokenizer, or one for each side, on the training text of `characters` characters."""

    @abstractmethod
    def prepare_data(self, recipe: Recipe, files: CorpusFiles, tokenizers: Tokenizers, characters: int) -> PreparedData:
        """Encode the text into token stores, or open those already written; new ones need the number of characters."""

    @abstractmethod
    def validation_fraction(self, characters: int) -> float:
        """The default share held out for validation: enough to compare two models, small enough to evaluate quickly."""

    def bleu_tokenizer(self, recipe: Recipe, data: PreparedData) -> str | None:
        """The tokenizer that BLEU is computed with; None where there is no BLEU."""
        return None

    def split_size(self, split: Split) -> str:
        """The size of a split, for the model card."""
        tokens = sum(int(side.lengths.sum()) for side in split.sides)
        return f"{split.examples:,} examples, {tokens:,} tokens, {split.size.bytes:,} bytes predicted"

    # Defaults of the recipe

    def vocabulary_size(self, characters: int) -> int:
        """The default vocabulary size, growing slowly with the text: frequent words become tokens, rare ones are
        split."""
        return int(max(512, min(32_000, 64 * round(self.vocabulary_factor * characters**0.4 / 64))))

    def tokenizer_defaults(self, characters: int) -> dict[str, Any]:
        """Other defaults of [tokenizer]."""
        return {}

    @abstractmethod
    def model_defaults(self, conditions: TrainingConditions) -> dict[str, Any]:
        """Defaults of [model], without the vocabulary."""

    @abstractmethod
    def training_defaults(self, conditions: TrainingConditions, model: dict[str, Any]) -> dict[str, Any]:
        """Defaults of [training]; `steps` is chosen later, from the time of one step."""

    def head_settings(self, data: PreparedData) -> dict[str, Any]:
        """Settings of [model] dictated by the data, which override the recipe."""
        return {}

    def derived_model_settings(self, settings: dict[str, Any], data: PreparedData) -> dict[str, Any]:
        """Defaults of [model] that follow from other settings or from the data."""
        return {}

    def finetune_settings(self, body: ModelConfig) -> dict[str, Any]:
        """Settings of [model] that change when fine-tuning from a pretrained `body`."""
        return {}

    def reinitialized_prefixes(self, start: TrainedModel, data: PreparedData) -> tuple[str, ...]:
        """Prefixes of weights of `start` to initialize again although their shapes fit."""
        return ()

    def task_settings(self, recipe: Recipe, data: PreparedData) -> Config | None:
        """Settings stored with the model in task.json."""
        return None

    def setup_summary(self, recipe: Recipe, data: PreparedData) -> list[str]:
        """Extra lines printed before the first step."""
        return []

    # Training and evaluation

    evaluation_details: ClassVar[tuple[str, ...]] = ()
    """The evaluation options that this task supports: by_length, by_position and context."""

    def check_details(self, options: EvaluationOptions) -> None:
        """Raise UsageError for a detail that this task's evaluation does not have."""
        for name in ("by_length", "by_position", "context"):
            if getattr(options, name) and name not in self.evaluation_details:
                tasks = {"by_length": "translators and classifiers", "by_position": "translators and language models"}
                raise UsageError(f"{argument(name)} is for {tasks.get(name, 'language models')}, not for {self.name}")

    @abstractmethod
    def training_components(self, recipe: Recipe, data: PreparedData, device: torch.device) -> TrainingComponents:
        """Build the objective, the batches and the validation function."""

    @abstractmethod
    def evaluate_files(self, trained: ModelT, files: Sequence[Path], options: EvaluationOptions) -> dict[str, Any]:
        """Compute every score of a model on held-out files."""

    @abstractmethod
    def evaluate_split(self, trained: ModelT, split: Split, options: EvaluationOptions) -> dict[str, Any]:
        """Compute the same scores on a prepared split: the validation set, if there are no test files."""

    def calibrate(self, best: ModelT, data: PreparedData, start_progress: StartProgress, texts: int) -> None:
        """Fit the settings of the finished model (temperature, thresholds) on at most `texts` validation texts, and set
        them on `best`."""
        return

    # Verdict

    def baseline_scores(self, data: PreparedData) -> dict[str, float]:
        """Scores on the validation text of a model that has learned nothing, added to those of a run."""
        return {}

    def weaknesses(self, scores: dict[str, Any]) -> list[str]:
        """The signs that a model with these scores is of no use; empty if it may be of use."""
        return []

    def baselines(self, scores: dict[str, Any]) -> list[str]:
        """The scores of a model that has learned nothing, to compare with."""
        return []

    def scarcity(self, data: PreparedData) -> str:
        """Why there is too little training text for a useful model; empty if there may be enough."""
        return ""

    # Reporting

    def card_section(self, best: ModelT, scores: dict[str, Any]) -> str:
        """A section of the model card about `calibrate`."""
        return ""

    def plots(self, scores: dict[str, Any], folder: Path) -> dict[str, Path]:
        """Plot the scores into `folder`; returns caption -> file."""
        return {}

    @abstractmethod
    def headline(self, scores: dict[str, Any]) -> str:
        """The main scores in one line."""

    def explained_examples(self, best: ModelT, split: Split, count: int) -> list[str | tuple[str, str]]:
        """At most `count` texts from all over a split, or texts with targets, on which explanations are measured."""
        return [self.explained_example(split.texts[index]) for index in evenly_spaced(len(split.texts), count)]

    def explained_example(self, example: tuple[str, ...]) -> str | tuple[str, str]:
        """An example of `Split.texts` as the model reads it, with a target where computing one is slow."""
        return example[0]

    @abstractmethod
    def samples(self, best: ModelT, split: Split) -> list[tuple[str, ...]]:
        """Example inputs and outputs, one tuple of `sample_columns` each."""


class TextTask(Task[ModelT]):
    """A task trained on running text."""

    corpus_kind = "text"

    def corpus_size(self, report: CorpusReport) -> str:
        return count(report.documents or 0, "document")

    def train_tokenizers(self, recipe: Recipe, files: CorpusFiles, characters: int) -> Tokenizers:
        return (train_text_tokenizer(files, *recipe.tokenizer.training(characters), characters=characters),)

    def prepare_data(self, recipe: Recipe, files: CorpusFiles, tokenizers: Tokenizers, characters: int) -> PreparedData:
        return prepare_text(files, tokenizers[0], characters=characters)

    def baseline_scores(self, data: PreparedData) -> dict[str, float]:
        return {"unigram_loss": unigram_loss(data.train.sides[0], data.valid.sides[0], len(data.tokenizers[0]))}

    def weaknesses(self, scores: dict[str, Any]) -> list[str]:
        return no_better_than_unigrams(scores)

    def scarcity(self, data: PreparedData) -> str:
        size = data.train.size.bytes
        return f"only {size:,} bytes of text: a language model needs a million or more" if size < 500_000 else ""

    def explained_examples(self, best: ModelT, split: Split, count: int) -> list[str | tuple[str, str]]:
        ids = split.sides[0].ids
        starts = evenly_spaced(max(0, len(ids) - EXPLAINED_TOKENS), count)
        return [*best.tokenizer.decode([ids[start : start + EXPLAINED_TOKENS].tolist() for start in starts])]

    def validation_fraction(self, characters: int) -> float:
        return min(0.1 if characters < 10_000_000 else 0.02, 5_000_000 / characters)


def no_better_than_unigrams(scores: dict[str, Any]) -> list[str]:
    """The signs that a model predicts tokens no better than by their frequencies."""
    loss, unigram = scores["loss"], scores.get("unigram_loss", float("inf"))
    return [] if loss < unigram else [f"its loss of {loss:.2f} is no better than {unigram:.2f}, by token frequencies"]

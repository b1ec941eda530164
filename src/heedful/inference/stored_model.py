"""StoredModel: a model with its tokenizers and settings, as a folder holds them."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict

import torch

from heedful.config import Config
from heedful.data.training_text import TrainingText
from heedful.errors import UsageError
from heedful.files import write_atomic
from heedful.inspection.attribution.faithfulness import FaithfulnessTable
from heedful.interventions.means import ActivationMeans
from heedful.model_files import FAITHFULNESS_FILE, MEANS_FILE, TOKENIZER_FILE, TRAINING_TEXT_FILE, ModelFiles
from heedful.model_folder import tokenizer_files, write_model, write_optional_files
from heedful.models.build import Model
from heedful.models.model_config import ModelConfig
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.tokenizer import Tokenizer

HEAD_TASKS = {"sequence_class": "classify", "answer_span": "answer", "masked_token": "fill"}
"""The task of a model with this head; the first one counts."""


class StoredSettings(TypedDict, total=False):
    """Keyword arguments of every model class: settings stored beside the weights."""

    means: ActivationMeans | None
    training_text: TrainingText | None
    measured_faithfulness: FaithfulnessTable | None


class StoredModel:
    """A model with its tokenizers and settings: loaded from a folder, saved to one, exported."""

    kind: ClassVar[str] = "a trained model"
    settings_files: ClassVar[dict[str, tuple[str, type[Config]]]] = {
        "means": (MEANS_FILE, ActivationMeans),
        "training_text": (TRAINING_TEXT_FILE, TrainingText),
        "measured_faithfulness": (FAITHFULNESS_FILE, FaithfulnessTable),
    }
    """Settings stored beside the weights: for each keyword and attribute of that name, its file and its type."""

    def __init__(
        self,
        model: Model,
        tokenizers: tuple[Tokenizer, ...] = (),
        folder: Path | None = None,
        *,
        means: ActivationMeans | None = None,
        training_text: TrainingText | None = None,
        measured_faithfulness: FaithfulnessTable | None = None,
    ) -> None:
        self.model: Any = model
        """The network itself; its type is declared by the class of each task."""
        self.tokenizers, self.folder = tokenizers, folder
        self.means, self.training_text = means, training_text
        self.measured_faithfulness = measured_faithfulness

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, device: str | torch.device = "auto") -> Self:
        """Load a model folder that holds a model of this type; another type of model is an error."""
        from heedful.loading import load_as

        return load_as(cls, folder, device=device)

    @classmethod
    def read_settings(cls, files: ModelFiles) -> dict[str, Config]:
        """Read the settings stored beside the weights, as keyword arguments of this class."""
        return {
            name: kind.from_json(content, files.folder / file)
            for name, (file, kind) in cls.settings_files.items()
            if (content := files.read(file)) is not None
        }

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def task(self) -> str:
        """The task, by the model's heads or else its family."""
        return task_of(self.model.config)

    @property
    def name(self) -> str:
        """The folder, for messages."""
        return str(self.folder or "this model")

    @property
    def short_name(self) -> str:
        """The folder's name alone, for captions."""
        return self.folder.resolve().name if self.folder else type(self).__name__.lower()

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the input text."""
        self.require_tokenizer()
        return self.tokenizers[0]

    @cached_property
    def template(self) -> SpecialTokenTemplate:
        """The special tokens that the model expects around its input."""
        return SpecialTokenTemplate.from_tokenizer(self.tokenizer)

    def require_tokenizer(self) -> None:
        if not self.tokenizers:
            raise UsageError(f"{self.name} has no {TOKENIZER_FILE}; pass token ids to its `model` instead")

    def __repr__(self) -> str:
        config = self.model.config
        layers = getattr(config, "layers", None)
        if layers and config.family == "encoder_decoder":
            layers = f"{layers}+{config.decoder_layers or layers}"
        parts = (
            *([repr(str(self.folder))] if self.folder else []),
            f"{_short(sum(weight.numel() for weight in self.model.parameters()))} parameters",
            f"{config.family} {layers} layers" if layers else config.family,
            f"width {config.width}",
            f"vocabulary {config.vocabulary:,}",
            str(self.device),
        )
        return f"{type(self).__name__}({', '.join(parts)})"

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write weights, tokenizers and settings as a model folder for `heedful.load`."""
        return write_model(self.model, Path(folder), self.files())

    def save_settings(self) -> None:
        """Write the tokenizers and settings to the model's own folder, where its weights are."""
        assert self.folder is not None, "a model made in memory has no folder to write to"
        write_optional_files(self.folder, self.files())

    def files(self) -> dict[str, str]:
        """The content of the files beside the weights: tokenizers and settings."""
        stored = {file: getattr(self, name) for name, (file, _) in self.settings_files.items()}
        settings = {file: value.to_file() for file, value in stored.items() if value is not None}
        return {**tokenizer_files(self.tokenizers), **settings}

    def save_tokenizers(self, folder: Path) -> None:
        for name, content in tokenizer_files(self.tokenizers).items():
            write_atomic(folder / name, content)


def task_of(config: ModelConfig) -> str:
    """The task of a model with this configuration; "encode" for an encoder without a task head."""
    for head, task in HEAD_TASKS.items():
        if head in getattr(config, "tasks", ()):
            return task
    if config.family in ("encoder", "word_vectors"):
        return "encode" if config.family == "encoder" else "embed"
    return "translate" if config.family.endswith("encoder_decoder") else "generate"


def _short(number: int) -> str:
    """A count in three digits or so: 6.0M."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)

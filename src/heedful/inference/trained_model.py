"""TrainedModel: a model with its tokenizers, the base of everything `heedful.load` returns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch

from heedful.config import Config
from heedful.errors import UsageError
from heedful.files import write_atomic
from heedful.generation.streaming import FIRST_BATCH, LARGEST_BATCH, stream_batches
from heedful.inference.text_embedding import TextEmbedding, Vectors, embed_texts
from heedful.model_files import TOKENIZER_FILE, ModelFiles
from heedful.model_folder import tokenizer_files, write_model, write_optional_files
from heedful.models.model_config import ModelConfig
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.tokenizer import Tokenizer
from heedful.vectors.model_word_table import word_table_from_model
from heedful.vectors.nearest_neighbors import WordTable

HEAD_TASKS = {"sequence_class": "classify", "answer_span": "answer", "masked_token": "fill"}
"""The task of a model with this head; the first one counts."""

ModelType = TypeVar("ModelType", bound="TrainedModel")


class TrainedModel:
    """A trained model with its tokenizers and settings, ready to use on text.

    `heedful.load` returns a Translator, Generator, Classifier, QuestionAnswerer, MaskFiller or Embedder.
    """

    kind: ClassVar[str] = "a trained model"
    settings_files: ClassVar[dict[str, tuple[str, type[Config]]]] = {}
    """Settings stored beside the weights: for each keyword and attribute of that name, its file and its type."""

    def __init__(self, model: Any, tokenizers: tuple[Tokenizer, ...] = (), folder: Path | None = None) -> None:
        self.model, self.tokenizers, self.folder = model, tokenizers, folder

    @classmethod
    def load(cls: type[ModelType], folder: str | os.PathLike[str], *, device: str | torch.device = "auto") -> ModelType:
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

    def embed(self, text: str | Sequence[str], *, normalize: bool = False) -> Vectors:
        """Embed a text as a vector, or a list of texts as rows: the mean of the hidden states of its tokens.

        `normalize`: scale vectors to length 1, so that the product of two is their cosine.
        """
        texts, single = text_list(text)
        vectors = [embedding.vector for embedding in self.iter_embed(texts, normalize=normalize)]
        table = np.stack(vectors) if vectors else np.empty((0, self.model.config.width), np.float32)
        return table[0] if single else table

    def iter_embed(self, texts: Iterable[str | None], *, normalize: bool = False) -> Iterator[TextEmbedding]:
        """Embed a stream of texts lazily and in order, with warnings. None in the stream flushes what came before."""
        tokenizer = self.tokenizer
        for batch in text_batches(texts):
            for embedding in embed_texts(self.model, tokenizer, batch):
                norm = float(np.linalg.norm(embedding.vector))
                yield replace(embedding, vector=embedding.vector / norm) if normalize and norm else embedding

    @cached_property
    def words(self) -> WordTable:
        """The vectors of all tokens that are whole words, for similarity and analogy."""
        return word_table_from_model(self.model, self.tokenizer, self.name)

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
        settings = {file: each.to_file() for file, each in stored.items() if each is not None}
        return {**tokenizer_files(self.tokenizers), **settings}

    def export(
        self, to: str, folder: str | os.PathLike[str], *, quantization: Literal["float32", "int8"] = "float32"
    ) -> Path:
        """Export for another library: "huggingface", "ctranslate2", "onnx" or "word2vec"."""
        from heedful.interop.conversion import export

        return export(self, to, folder, quantization=quantization)

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


def text_list(text: object) -> tuple[list[str], bool]:
    """Check that the input is a string or an iterable of strings; return a list, and whether it was one string."""
    if isinstance(text, str):
        return [text], True
    if not isinstance(text, Iterable) or isinstance(text, bytes | Mapping):
        raise UsageError(f"expected a text or a list of texts, got {text!r:.60}")
    return [_string(each) for each in text], False


def text_batches(texts: Iterable[str | None], first: int | None = None) -> Iterator[list[str]]:
    """Group texts into batches: `first` texts at first (a list: as many as possible), then more and more."""
    if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
        raise UsageError(f"expected an iterable of texts, got {texts!r:.60}")
    first = first or (LARGEST_BATCH if isinstance(texts, Sequence) else FIRST_BATCH)
    return stream_batches((text if text is None else _string(text) for text in texts), first)


def _string(text: object) -> str:
    if not isinstance(text, str):
        raise UsageError(f"every text must be a string, got {text!r:.60}")
    return text


def _short(number: int) -> str:
    """A count in three digits or so: 6.0M."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)

"""`heedful.load`: load a model folder, in heedful's format or a Hugging Face layout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import torch

from heedful.device import select_device
from heedful.errors import CheckpointError, UsageError
from heedful.inference.classifier import Classifier
from heedful.inference.embedder import Embedder
from heedful.inference.generator import Generator
from heedful.inference.mask_filler import MaskFiller
from heedful.inference.question_answerer import QuestionAnswerer
from heedful.inference.stored_model import StoredModel, task_of
from heedful.inference.trained_model import TrainedModel
from heedful.inference.translator import Translator
from heedful.interop.huggingface import import_model
from heedful.interop.huggingface_tokenizer import import_tokenizer
from heedful.interop.vocabulary_remapping import (
    read_special_ids,
    reorder_tokenizer,
    reorder_vocabulary,
    vocabulary_order,
)
from heedful.interop.word2vec_format import read_word2vec
from heedful.model_files import CONFIG, TARGET_TOKENIZER_FILE, TOKENIZER_FILE, ModelFiles
from heedful.model_folder import HUGGINGFACE_TARGET, load_model
from heedful.models.build import Model
from heedful.syntax import by_interface
from heedful.text.special_tokens import SPECIAL_TOKENS, START
from heedful.text.tokenizer import Tokenizer
from heedful.vectors.nearest_neighbors import WordTable

TYPES: dict[str, type[TrainedModel]] = {
    "translate": Translator,
    "generate": Generator,
    "classify": Classifier,
    "answer": QuestionAnswerer,
    "fill": MaskFiller,
    "embed": Embedder,
    "encode": Embedder,
}
ModelType = TypeVar("ModelType", bound=StoredModel)
CTRANSLATE2_WEIGHTS = "model.bin"
AnyModel = Translator | Generator | Classifier | QuestionAnswerer | MaskFiller | Embedder


def load(folder: str | os.PathLike[str], *, device: str | torch.device = "auto") -> AnyModel:
    """Load a model folder; the class of the result depends on the model's task.

    `device`: "auto" (CUDA or MPS if there is one, else CPU), "cpu", "cuda", "cuda:1", "mps". To require one type, use
    for example `heedful.Translator.load`. A Hugging Face layout is converted as `heedful import` does.
    """
    if not isinstance(folder, str | os.PathLike):
        raise UsageError(f"load takes the path of a model folder, got {folder!r:.60}")
    target = select_device(device)
    return load_files(ModelFiles(Path(folder)), target)


def load_files(files: ModelFiles, device: torch.device) -> AnyModel:
    """Load a model folder that has been opened."""
    model, tokenizers = (_read_heedful if files.is_heedful_format else _read_huggingface)(files)
    model_type: Any = TYPES[task_of(model.config)]
    trained: AnyModel = model_type(model.to(device), tokenizers, files.folder, **model_type.read_settings(files))
    return trained


def load_as(
    model_type: type[ModelType], folder: str | os.PathLike[str], *, device: str | torch.device = "auto"
) -> ModelType:
    """Load a model folder that must hold a model of this type."""
    trained: Any = load(folder, device=device)
    if not isinstance(trained, model_type):
        command = "embed" if trained.task == "encode" else trained.task
        use = by_interface(f"heedful.{type(trained).__name__}.load", f"heedful {command}")
        raise UsageError(f"{folder} is {trained.kind}, not {model_type.kind}; use {use}")
    return trained


def wrap_model(model: Model, tokenizers: tuple[Tokenizer, ...] = (), folder: Path | None = None) -> AnyModel:
    """Wrap a model in the class of its task, with default settings."""
    model_type: Any = TYPES[task_of(model.config)]
    wrapped: AnyModel = model_type(model, tokenizers, folder)
    return wrapped


def load_word_vectors(path: str | os.PathLike[str]) -> WordTable:
    """Load the word vectors of a model folder of any task, or of a word2vec file."""
    file = Path(path)
    return WordTable(*read_word2vec(file), name=str(file)) if file.is_file() else load(file, device="cpu").words


def _read_heedful(files: ModelFiles) -> tuple[Model, tuple[Tokenizer, ...]]:
    contents = {name: files.read(name) for name in (TOKENIZER_FILE, TARGET_TOKENIZER_FILE)}
    model = load_model(files)
    source_rows = model.config.vocabulary
    target_rows = getattr(model.config, "target_vocabulary", None) or source_rows
    rows = {TOKENIZER_FILE: source_rows, TARGET_TOKENIZER_FILE: target_rows}
    tokenizers = (
        Tokenizer.from_untrusted(content, files.folder / name, rows[name])
        for name, content in contents.items()
        if content is not None
    )
    return model, tuple(tokenizers)


def read_tokenizers(folder: Path) -> tuple[Tokenizer, ...]:
    """The tokenizers in the folder of a run, which may have no model yet: one, or those of source and target."""
    paths = [folder / name for name in (TOKENIZER_FILE, TARGET_TOKENIZER_FILE)]
    return tuple(Tokenizer.load(path) for path in paths if path.exists())


def _read_huggingface(files: ModelFiles) -> tuple[Model, tuple[Tokenizer, ...]]:
    """Read a model in a Hugging Face layout, with heedful's special tokens.

    Search code knows special tokens by heedful's ids, so the vocabulary of a decoder is reordered to have them. An
    encoder keeps its own: `SpecialTokenTemplate` finds them by name.
    """
    folder = files.folder
    if (folder / CTRANSLATE2_WEIGHTS).exists():
        raise CheckpointError(
            f"{folder} is a CTranslate2 model, which ctranslate2 alone runs: its values cannot be recorded or changed; "
            "use the model folder that it was exported from"
        )
    if "model_type" not in files.config:
        raise CheckpointError(f"{folder / CONFIG} describes no model heedful knows (no 'format' or 'model_type')")
    model = import_model(folder)
    paths = [folder / TOKENIZER_FILE, folder / HUGGINGFACE_TARGET / TOKENIZER_FILE]
    tokenizers = [import_tokenizer(path) for path in paths if path.exists()]
    if tokenizers and model.config.family != "encoder":
        special_ids = read_special_ids(folder, tokenizers[0])
        if special_ids != list(range(len(SPECIAL_TOKENS))):
            if len(tokenizers) > 1 or getattr(model.config, "target_vocabulary", None):
                raise CheckpointError(f"{folder}: two vocabularies with special tokens of their own cannot be imported")
            order = vocabulary_order(special_ids, model.config.vocabulary)
            model = reorder_vocabulary(model, order, special_ids[START])
            tokenizers = [reorder_tokenizer(tokenizers[0], order)]
    return model, tuple(tokenizers)

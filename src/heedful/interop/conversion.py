"""Models in other people's formats, and back: what `heedful export` and `heedful import` do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from heedful.errors import CheckpointError, HeedfulError, UsageError, nearest
from heedful.files import new_folder, require_empty
from heedful.inference.classifier import ClassifierSettings
from heedful.inference.trained import TASK_FILE, TARGET_TOKENIZER_FILE, TOKENIZER_FILE, TrainedModel, load_as_stored
from heedful.interop.ctranslate2_export import Quantisation, export_ctranslate2
from heedful.interop.huggingface import choose_layout, export_model
from heedful.interop.huggingface_tokenizer import export_tokenizer, import_tokenizer
from heedful.interop.onnx_export import export_onnx
from heedful.interop.vocabulary_remapping import vocabulary_order, reorder_vocabulary, reorder_tokenizer, read_special_ids
from heedful.interop.word2vec_format import write_word2vec
from heedful.model_folder import is_ours, save
from heedful.text.special_tokens import END, NEVER_GENERATED, PAD, SPECIAL_TOKENS, START

FORMATS = ("huggingface", "ctranslate2", "onnx", "word2vec")
VECTORS = "vectors.txt"
TARGET = "target"
"""The folder, within one of Hugging Face's, of the target's own tokenizer."""


def export(
    model: TrainedModel | str | os.PathLike[str],
    to: str,
    folder: str | os.PathLike[str],
    *,
    quantisation: Quantisation = "float32",
) -> Path:
    """Write a trained model, or the one in a folder, for another library: huggingface, ctranslate2, onnx or word2vec.

    The tokenizer goes along. What the format cannot express is refused by name, and nothing is written. `quantisation`
    "int8" is for ctranslate2.
    """
    if to not in FORMATS:
        raise UsageError(f"unknown format '{to}'; {nearest(to, FORMATS)}")
    if quantisation != "float32" and to != "ctranslate2":
        raise UsageError(f"{quantisation} weights are for ctranslate2; {to} gets float32")
    trained = model if isinstance(model, TrainedModel) else load_as_stored(model)
    with _new(Path(folder)) as aside:
        if to == "ctranslate2":
            _to_ctranslate2(trained, aside, quantisation)
        elif to == "word2vec":  # of any model: the vectors of its tokens that are words
            write_word2vec(aside / VECTORS, trained.words.words, trained.words.table)
        elif to == "onnx":
            export_onnx(trained.model, aside)
            _copy_tokenizers(trained, aside)
        else:
            _to_huggingface(trained, aside)
    return Path(folder)


def import_folder(theirs: str | os.PathLike[str], folder: str | os.PathLike[str]) -> TrainedModel:
    """A model folder of ours from one in a Hugging Face layout."""
    trained = _imported(Path(theirs))
    trained.folder = Path(folder)
    with _new(Path(folder)) as aside:
        save(trained.model, aside)
        _copy_tokenizers(trained, aside)
        if trained.settings is not None:
            (aside / TASK_FILE).write_text(trained.settings.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return trained


def load(folder: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> TrainedModel:
    """What is in a model folder, ready to use; one in a Hugging Face layout as `heedful import` would make it ours."""
    path = Path(folder)
    if is_ours(path):
        return load_as_stored(path, device=device)
    found = _imported(path)
    found.model.to(device)
    return found


def _imported(source: Path) -> TrainedModel:
    """From a Hugging Face layout.

    A model that writes gets our ids for its special tokens, since every search here knows them by these; an encoder's
    are known by their names (`text.frame`).
    """
    found = load_as_stored(source)
    model = found.model
    places = [file for file in (source / TOKENIZER_FILE, source / TARGET / TOKENIZER_FILE) if file.is_file()]
    tokenizers = [import_tokenizer(file) for file in places]
    if tokenizers and model.config.family != "encoder":
        roles = read_special_ids(source, tokenizers[0])
        if roles != list(range(len(SPECIAL_TOKENS))):
            if len(tokenizers) > 1 or model.config.target_vocabulary:
                raise CheckpointError(f"{source}: two vocabularies with special tokens of their own cannot be imported")
            order = vocabulary_order(roles, model.config.vocabulary)
            model = reorder_vocabulary(model, order, roles[START])
            tokenizers = [reorder_tokenizer(tokenizers[0], order)]
    return TrainedModel(model, tuple(tokenizers), source, notes=found.settings)


def _to_huggingface(trained: TrainedModel, folder: Path) -> None:
    model, config = trained.model, trained.model.config
    layout = choose_layout(model)
    special: dict[str, Any] = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
    if isinstance(trained.settings, ClassifierSettings):
        names = dict(enumerate(trained.settings.names))
        special |= {"id2label": names, "label2id": {name: number for number, name in names.items()}}
        special |= {"problem_type": "multi_label_classification"} if trained.settings.multi_label else {}
    if config.family == "encoder_decoder":
        special |= {"decoder_start_token_id": START, "forced_eos_token_id": None}
    export_model(model, folder, layout, **special)
    if config.family != "encoder":
        how = {**special, "suppress_tokens": NEVER_GENERATED, "max_length": config.max_length}
        (folder / "generation_config.json").write_text(json.dumps(how, indent=2) + "\n", encoding="utf-8")
    for tokenizer, place in zip(trained.tokenizers, (folder, folder / TARGET), strict=False):
        export_tokenizer(tokenizer, place, config)


def _to_ctranslate2(trained: TrainedModel, folder: Path, quantisation: Quantisation) -> None:
    if not trained.tokenizers:
        raise UsageError(f"{trained.folder or 'this model'} has no {TOKENIZER_FILE}; ctranslate2 needs a vocabulary")
    names = [tokenizer.tokens for tokenizer in trained.tokenizers]
    export_ctranslate2(trained.model, folder, names, quantisation=quantisation, suppressed=NEVER_GENERATED)
    _copy_tokenizers(trained, folder)


def _copy_tokenizers(trained: TrainedModel, folder: Path) -> None:
    for tokenizer, name in zip(trained.tokenizers, (TOKENIZER_FILE, TARGET_TOKENIZER_FILE), strict=False):
        tokenizer.save(folder / name)


@contextmanager
def _new(folder: Path) -> Iterator[Path]:
    """A folder written aside and renamed when whole; what is there already is not touched."""
    require_empty(folder)
    try:
        with new_folder(folder) as temporary:
            yield temporary
    except OSError as error:
        raise HeedfulError(f"{folder} could not be written: {error}") from None

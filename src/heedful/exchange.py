"""Models in other people's formats, and back: what `heedful export` and `heedful import` do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Literal, get_args

from heedful.errors import CheckpointError, HeedfulError, UsageError, nearest
from heedful.folder import load_model, save
from heedful.interop.ctranslate2 import Quantisation, export_ctranslate2
from heedful.interop.huggingface import choose_layout, export_model
from heedful.interop.onnx import export_onnx
from heedful.interop.tokenizers import export_tokenizer, import_tokenizer
from heedful.text.special import END, NEVER_WRITTEN, PAD, START
from heedful.trained import TARGET_TOKENIZER, TOKENIZER, Trained, load

Format = Literal["huggingface", "ctranslate2", "onnx"]
TARGET = "target"
"""The folder, within one of Hugging Face's, of the target's own tokenizer."""


def export(
    model: Trained | str | os.PathLike[str],
    to: Format,
    folder: str | os.PathLike[str],
    *,
    quantisation: Quantisation = "float32",
) -> Path:
    """Write a trained model, or the one in a folder, for another library: huggingface, ctranslate2 or onnx.

    The tokenizer goes along. What the format cannot express is refused by name, and nothing is written. `quantisation`
    "int8" is for ctranslate2.
    """
    if to not in get_args(Format):
        raise UsageError(f"unknown format '{to}'; {nearest(to, get_args(Format))}")
    if quantisation != "float32" and to != "ctranslate2":
        raise UsageError(f"{quantisation} weights are for ctranslate2; {to} gets float32")
    trained = model if isinstance(model, Trained) else load(model)
    try:
        with _new(Path(folder)) as aside:
            if to == "ctranslate2":
                _to_ctranslate2(trained, aside, quantisation)
            elif to == "onnx":
                export_onnx(trained.model, aside)
                _copy_tokenizers(trained, aside)
            else:
                _to_huggingface(trained, aside)
    except UsageError as error:
        others = {"huggingface": "ctranslate2 or onnx", "ctranslate2": "onnx"}.get(to)
        raise UsageError(f"{error}; export to {others} instead" if others and "express" in str(error) else str(error)) from None
    return Path(folder)


def import_folder(theirs: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Trained:
    """A model folder of ours from one in a Hugging Face layout."""
    source = Path(theirs)
    model = load_model(source)
    files = {source / TOKENIZER: TOKENIZER, source / TARGET / TOKENIZER: TARGET_TOKENIZER}
    tokenizers = {name: import_tokenizer(file) for file, name in files.items() if file.is_file()}
    with _new(Path(folder)) as aside:
        save(model, aside)
        for name, tokenizer in tokenizers.items():
            tokenizer.save(aside / name)
    return load(folder)


def _to_huggingface(trained: Trained, folder: Path) -> None:
    config = trained.model.config
    layout = choose_layout(trained.model)
    special = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
    if config.family == "encoder_decoder":
        special |= {"decoder_start_token_id": START}
    export_model(trained.model, folder, layout, **special)
    places = (folder, folder / TARGET)
    for tokenizer, place in zip(trained.tokenizers, places, strict=False):
        export_tokenizer(tokenizer, place, config)


def _to_ctranslate2(trained: Trained, folder: Path, quantisation: Quantisation) -> None:
    if not trained.tokenizers:
        raise UsageError(f"{trained.folder or 'this model'} has no {TOKENIZER}; ctranslate2 needs a vocabulary")
    names = [tokenizer.tokens for tokenizer in trained.tokenizers]
    export_ctranslate2(trained.model, folder, names, quantisation=quantisation, never=NEVER_WRITTEN)
    _copy_tokenizers(trained, folder)


def _copy_tokenizers(trained: Trained, folder: Path) -> None:
    for tokenizer, name in zip(trained.tokenizers, (TOKENIZER, TARGET_TOKENIZER), strict=False):
        tokenizer.save(folder / name)


@contextmanager
def _new(folder: Path) -> Iterator[Path]:
    """A folder written aside and renamed when whole; what is there already is not touched."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty; choose another folder")
    aside = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    try:
        aside.mkdir(parents=True)
        yield aside
        aside.replace(folder)
    except OSError as error:
        raise HeedfulError(f"{folder} could not be written: {error}") from None
    finally:
        rmtree(aside, ignore_errors=True)

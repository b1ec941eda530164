"""Save and load a model folder in heedful's format; `heedful.model_files` lists its files.

Weights are safetensors, never pickle: loading a model runs none of its author's code. Its files are checked before
anything of the size they ask for is built.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

from heedful.errors import CheckpointError, HeedfulError, UsageError
from heedful.files import MANIFEST, fsync, read_manifest, write_manifest
from heedful.model_files import (
    CONFIG,
    FORMAT,
    OPTIONAL_FILES,
    TARGET_TOKENIZER_FILE,
    TOKENIZER_FILE,
    WEIGHTS,
    ModelFiles,
)
from heedful.model_limits import check_layers, check_values, check_weights_file, check_weights_size, one_line
from heedful.models.build import Model, build
from heedful.models.model_config import ModelConfig
from heedful.models.presets import make_config
from heedful.text.tokenizer import Tokenizer

HUGGINGFACE_TARGET = "target"
"""Subfolder of a Hugging Face layout with the target's tokenizer, where it has its own."""
TEMPORARY = "saving.tmp"


def save(model: Model, folder: str | os.PathLike[str]) -> Path:
    """Write a model's weights and configuration to a folder for `heedful.load`; other files in it stay."""
    return write_model(model, Path(folder))


def tokenizer_files(tokenizers: Sequence[Tokenizer]) -> dict[str, str]:
    """The content of each tokenizer's file, by its name."""
    names = (TOKENIZER_FILE, TARGET_TOKENIZER_FILE)
    return {name: tokenizer.to_file() for name, tokenizer in zip(names, tokenizers, strict=False)}


def write_model(model: Model, path: Path, files: Mapping[str, str] | None = None) -> Path:
    """Write a model and the content of its `OPTIONAL_FILES`; None keeps those that are there.

    Files are written to a temporary folder and fsynced, then moved into place, the manifest last. A save that fails
    while writing leaves an older model as it was; one interrupted between two moves leaves a folder that `load`
    refuses.
    """
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; a model is saved as a folder; choose another name")
    weights = {name: weight.detach().cpu().contiguous() for name, weight in model.state_dict().items()}
    config = {"format": FORMAT, **model.config.model_dump(mode="json")}
    kept = OPTIONAL_FILES if files is None else ()
    size = sum(weight.nbytes for weight in weights.values())
    with _new_files(path, f"the model's {size:,} bytes", kept=kept) as temporary:
        save_file(weights, temporary / WEIGHTS, metadata={"format": "pt"})
        _write_texts(temporary, {CONFIG: json.dumps(config, indent=2) + "\n", **(files or {})})
        shutil.copymode(temporary / CONFIG, temporary / WEIGHTS)  # safetensors creates files only the owner may read
    return path


def write_optional_files(path: Path, files: Mapping[str, str]) -> None:
    """Replace all `OPTIONAL_FILES` of a model by these; its weights are neither read nor written."""
    with _new_files(path, "the model's settings", kept=(CONFIG, WEIGHTS)) as temporary:
        _write_texts(temporary, files)


def _write_texts(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


@contextmanager
def _new_files(path: Path, content: str, *, kept: Sequence[str]) -> Iterator[Path]:
    """Yield a temporary folder; its files are moved to `path`, last of all a manifest of them and of the `kept` files.

    The model's other files are removed. `kept` files keep their old checksums, even if they changed on disk.
    """
    temporary, manifest = path / TEMPORARY, {}
    with suppress(CheckpointError):
        manifest = read_manifest(path)
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        names = sorted(file.name for file in temporary.iterdir())
        write_manifest(temporary, names, {name: manifest[name] for name in kept if name in manifest})
        for name in names:
            (temporary / name).replace(path / name)
        for name in {*OPTIONAL_FILES} - {*names, *kept}:
            (path / name).unlink(missing_ok=True)
        (temporary / MANIFEST).replace(path / MANIFEST)
        fsync(path)
    except (OSError, SafetensorError) as error:
        raise HeedfulError(f"{path}: cannot write {content}: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_model(files: ModelFiles) -> Model:
    """Load the weights of a folder in heedful's format, in evaluation mode; `heedful.load` is the public entry."""
    file = files.verify_size(WEIGHTS)
    tensors = check_weights_file(file)
    try:
        config = make_config({key: value for key, value in files.config.items() if key != "format"})
        check_layers(config, file, tensors)
        model = build_on_meta(config)
        check_weights_size(model, file)
        weights = load_file(files.verify(WEIGHTS))
        check_values(weights, files.folder)
        model.load_state_dict(weights, assign=True)
    except (SafetensorError, RuntimeError, UsageError) as error:
        raise CheckpointError(f"{files.folder}: weights and configuration do not fit: {one_line(error)}") from None
    return model.eval()


def build_on_meta(config: ModelConfig) -> Model:
    """Build a model on the meta device, without allocating or initializing weights."""
    with torch.device("meta"), SkipInitialization():
        model: Model = build(config)
    return model


class SkipInitialization(TorchFunctionMode):
    """Skip random initialization of weights that will be loaded.

    On the meta device, initialization would import torch's compiler, which takes longer than all the rest of loading.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        initializes = getattr(func, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_", "div_")
        return (*args, *(kwargs or {}).values())[0] if initializes else func(*args, **(kwargs or {}))

"""A model folder: config.json, model.safetensors, manifest.json. `heedful.load` is the only door.

Weights are safetensors, never pickle: opening a stranger's model runs none of their code. The manifest
holds sizes and SHA-256 sums, because safetensors itself loads a flipped bit without a word.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.overrides import TorchFunctionMode

from heedful.errors import CheckpointError, HeedfulError, UsageError
from heedful.interop.huggingface import import_model
from heedful.models.build import build
from heedful.models.model_config import ModelConfig
from heedful.models.presets import make_config

CONFIG, WEIGHTS, MANIFEST = "config.json", "model.safetensors", "manifest.json"
FORMAT = "heedful-1"
ASIDE = "saving.tmp"


class Sum(NamedTuple):
    """What a manifest says of a file."""

    size: int
    sha256: str


def save(model: Any, folder: str | os.PathLike[str]) -> Path:
    """Write the model so that `load` gives it back; what else is in the folder stays.

    All files are written aside and synced, then moved into place one after the other, the manifest last. A
    save that fails while writing leaves an older model as it was. One cut off between two of the moves
    leaves a folder that `load` refuses: never a mixture, never half a file.
    """
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; a model is saved as a folder: choose another name")
    weights = {name: weight.detach().cpu().contiguous() for name, weight in model.state_dict().items()}
    config = {"format": FORMAT, **model.config.model_dump(mode="json")}
    size = sum(weight.nbytes for weight in weights.values())
    aside = path / ASIDE
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        save_file(weights, aside / WEIGHTS, metadata={"format": "pt"})
        (aside / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        shutil.copymode(aside / CONFIG, aside / WEIGHTS)  # safetensors' own is for the owner alone
        write_manifest(aside, (CONFIG, WEIGHTS))
        for name in (WEIGHTS, CONFIG, MANIFEST):
            (aside / name).replace(path / name)
        sync(path)
    except (OSError, SafetensorError) as error:
        raise HeedfulError(f"{path}: the model's {size:,} bytes could not be written: {error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return path


def load_model(folder: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> Any:
    """The model in `folder`, ours or in a Hugging Face layout, ready to use (in evaluation mode)."""
    path = Path(folder)
    described = _read_config(path)
    if described.get("format") != FORMAT:
        if "model_type" not in described:
            raise CheckpointError(f"{path / CONFIG} describes no model heedful knows (no 'format' or 'model_type')")
        return import_model(path).to(device)
    read_manifest(path, (CONFIG, WEIGHTS))
    try:
        config = make_config({key: value for key, value in described.items() if key != "format"})
        model = undrawn(config)
        model.load_state_dict(load_file(path / WEIGHTS), assign=True)
    except (SafetensorError, RuntimeError, HeedfulError) as error:
        raise CheckpointError(f"{path}: weights and configuration do not fit: {error}".replace("\n", " ")) from None
    return model.to(device).eval()


def is_ours(folder: Path) -> bool:
    """Whether a model folder is in our own format, rather than in one of Hugging Face's layouts."""
    return _read_config(folder).get("format") == FORMAT


def undrawn(config: ModelConfig) -> nn.Module:
    """The model without memory for its weights: they are about to be read."""
    with torch.device("meta"), Undrawn():
        model: nn.Module = build(config)
    return model


class Undrawn(TorchFunctionMode):
    """Weights that are about to be read need be neither drawn nor scaled first.

    That costs nothing where there is no memory, but there it imports torch's compiler: more seconds than all the rest.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drawing = getattr(func, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_", "div_")
        return (*args, *(kwargs or {}).values())[0] if drawing else func(*args, **(kwargs or {}))


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a model folder" + ("" if path.exists() else ": it does not exist"))
    try:
        described = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is not a model folder: it has no {CONFIG}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path / CONFIG} is not valid JSON: {error}") from None
    except OSError as error:
        raise CheckpointError(f"{path / CONFIG} cannot be read: {error.strerror}") from None
    if not isinstance(described, dict):
        raise CheckpointError(f"{path / CONFIG} must hold a JSON object")
    return described


def write_manifest(folder: Path, names: Iterable[str], known: Mapping[str, Sum] = MappingProxyType({})) -> None:
    """Note the size and SHA-256 of these files, and see them and the note to the disk; and of others of which that is
    known and done."""
    sums = {name: _sum(folder / name) for name in names}
    said = {name: found._asdict() for name, found in {**known, **sums}.items()}
    (folder / MANIFEST).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    for name in (*sums, MANIFEST):
        sync(folder / name)


def read_manifest(folder: Path, names: Iterable[str]) -> None:
    """Refuse the folder unless each of these files is there and as the manifest says."""
    try:
        sums = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        expected = [(folder / name, Sum(sums[name]["size"], sums[name]["sha256"])) for name in names]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"{folder / MANIFEST} is missing or damaged; the model cannot be trusted") from None
    for file, said in expected:
        if not file.is_file():
            raise CheckpointError(f"{file} is missing")
        if file.stat().st_size != said.size:
            raise CheckpointError(f"{file} has {file.stat().st_size} bytes, its manifest says {said.size}")
    for (file, said), found in zip(expected, _sums([file for file, _ in expected]), strict=True):
        if found != said:
            raise CheckpointError(f"{file} is damaged: its SHA-256 differs from the manifest's")


def replace_file(file: Path, text: str) -> None:
    """Write a text file that is there whole or not at all, whatever happens meanwhile."""
    aside = file.with_name(f"{file.name}.tmp")
    try:
        aside.write_text(text, encoding="utf-8")
        sync(aside)
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Ask that a file, or a folder's list of names, reach the disk itself."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sum(file: Path) -> Sum:
    with file.open("rb") as stream:
        return Sum(file.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest())


def _sums(files: list[Path]) -> list[Sum]:
    """Side by side, if they are many: parts of a large checkpoint."""
    if len(files) <= 2:
        return [_sum(file) for file in files]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_sum, files))

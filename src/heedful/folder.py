"""A model folder: config.json, model.safetensors, manifest.json. `load` is the only door.

Weights are safetensors, never pickle: opening a stranger's model runs none of their code. The manifest
holds sizes and SHA-256 sums, because safetensors itself loads a flipped bit without a word.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from heedful.errors import CheckpointError, HeedfulError
from heedful.interop.huggingface import import_model
from heedful.models.build import build
from heedful.models.presets import make_config

CONFIG, WEIGHTS, MANIFEST = "config.json", "model.safetensors", "manifest.json"
FORMAT = "heedful-1"


def save(model: Any, folder: str | os.PathLike[str]) -> Path:
    """Write the model so that `load` gives it back. Files appear whole or not at all."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.detach().cpu().contiguous() for name, weight in model.state_dict().items()}
    config = {"format": FORMAT, **model.config.model_dump(mode="json")}
    _write(path / WEIGHTS, lambda file: save_file(weights, file, metadata={"format": "pt"}))
    _write(path / CONFIG, lambda file: file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8"))
    sums = {name: {"size": (path / name).stat().st_size, "sha256": _sha256(path / name)} for name in (CONFIG, WEIGHTS)}
    _write(path / MANIFEST, lambda file: file.write_text(json.dumps(sums, indent=2) + "\n", encoding="utf-8"))
    return path


def load(folder: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> Any:
    """The model in `folder`, ours or in a Hugging Face layout, ready to use (in evaluation mode)."""
    path = Path(folder)
    described = _read_config(path)
    if described.get("format") != FORMAT:
        if "model_type" not in described:
            raise CheckpointError(f"{path / CONFIG} describes no model heedful knows (no 'format' or 'model_type')")
        return import_model(path).to(device)
    _verify(path)
    try:
        config = make_config({key: value for key, value in described.items() if key != "format"})
        with torch.device("meta"):
            model = build(config)
        model.load_state_dict(load_file(path / WEIGHTS), assign=True)
    except (SafetensorError, RuntimeError, HeedfulError) as error:
        raise CheckpointError(f"{path}: weights and configuration do not fit: {error}".replace("\n", " ")) from None
    return model.to(device).eval()


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a model folder" + ("" if path.exists() else ": it does not exist"))
    try:
        described = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is not a model folder: it has no {CONFIG}") from None
    except ValueError as error:
        raise CheckpointError(f"{path / CONFIG} is not valid JSON: {error}") from None
    if not isinstance(described, dict):
        raise CheckpointError(f"{path / CONFIG} must hold a JSON object")
    return described


def _verify(path: Path) -> None:
    try:
        sums = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        expected = {name: (sums[name]["size"], sums[name]["sha256"]) for name in (CONFIG, WEIGHTS)}
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"{path / MANIFEST} is missing or damaged; the model cannot be trusted") from None
    for name, (size, digest) in expected.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"{file} is missing")
        if file.stat().st_size != size:
            raise CheckpointError(f"{file} has {file.stat().st_size} bytes, its manifest says {size}")
        if _sha256(file) != digest:
            raise CheckpointError(f"{file} is damaged: its SHA-256 differs from the manifest's")


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write(file: Path, write: Any) -> None:
    aside = file.with_name(file.name + ".tmp")
    try:
        write(aside)
        with aside.open("rb") as stream:
            os.fsync(stream.fileno())
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)

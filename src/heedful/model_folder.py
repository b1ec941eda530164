"""A model folder: config.json, model.safetensors, manifest.json. `heedful.load` is the only door.

Weights are safetensors, never pickle: opening a stranger's model runs none of their code. The manifest
holds sizes and SHA-256 sums, because safetensors itself loads a flipped bit without a word.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.overrides import TorchFunctionMode

from heedful.errors import CheckpointError, HeedfulError, UsageError
from heedful.files import MANIFEST, fsync, verify_manifest, write_manifest
from heedful.interop.huggingface import import_model
from heedful.models.build import build
from heedful.models.model_config import ModelConfig
from heedful.models.presets import make_config

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FORMAT = "heedful-1"
ASIDE = "saving.tmp"


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
        fsync(path)
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
    verify_manifest(path, (CONFIG, WEIGHTS))
    try:
        config = make_config({key: value for key, value in described.items() if key != "format"})
        model = build_without_weights(config)
        model.load_state_dict(load_file(path / WEIGHTS), assign=True)
    except (SafetensorError, RuntimeError, HeedfulError) as error:
        raise CheckpointError(f"{path}: weights and configuration do not fit: {error}".replace("\n", " ")) from None
    return model.to(device).eval()


def is_ours(folder: Path) -> bool:
    """Whether a model folder is in our own format, rather than in one of Hugging Face's layouts."""
    return _read_config(folder).get("format") == FORMAT


def build_without_weights(config: ModelConfig) -> nn.Module:
    """The model without memory for its weights: they are about to be read."""
    with torch.device("meta"), SkipInitialization():
        model: nn.Module = build(config)
    return model


class SkipInitialization(TorchFunctionMode):
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

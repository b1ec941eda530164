"""A model folder on disk: config.json, model.safetensors, manifest.json.

Weights are safetensors, never pickle: loading a model runs none of its author's code. The manifest holds sizes and
SHA-256 checksums, because safetensors loads a flipped bit without an error.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.overrides import TorchFunctionMode

from heedful.errors import CheckpointError, HeedfulError, UsageError
from heedful.files import MANIFEST, fsync, verify_manifest, write_manifest
from heedful.models.build import build
from heedful.models.model_config import ModelConfig
from heedful.models.presets import make_config

CONFIG, WEIGHTS = "config.json", "model.safetensors"
TOKENIZER_FILE, TARGET_TOKENIZER_FILE = "tokenizer.json", "target_tokenizer.json"
TASK_FILE = "task.json"
"""Settings of a classifier or question answerer."""
HUGGINGFACE_TARGET = "target"
"""Subfolder of a Hugging Face layout with the target's tokenizer, where it has its own."""
FORMAT = "heedful-1"
TEMPORARY = "saving.tmp"
HUB_NAME = re.compile(r"(?!\.)[\w.-]+(/[\w.-]+)?")
"""A model of the Hugging Face Hub: NAME or OWNER/NAME."""


def save(model: Any, folder: str | os.PathLike[str]) -> Path:
    """Write a model's weights and configuration to a folder for `heedful.load`; other files in it stay.

    Files are written to a temporary folder and fsynced, then moved into place, the manifest last. A save that fails
    while writing leaves an older model as it was; one interrupted between two moves leaves a folder that `load`
    refuses.
    """
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; a model is saved as a folder; choose another name")
    weights = {name: weight.detach().cpu().contiguous() for name, weight in model.state_dict().items()}
    config = {"format": FORMAT, **model.config.model_dump(mode="json")}
    size = sum(weight.nbytes for weight in weights.values())
    temporary = path / TEMPORARY
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_file(weights, temporary / WEIGHTS, metadata={"format": "pt"})
        (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        shutil.copymode(temporary / CONFIG, temporary / WEIGHTS)  # safetensors creates files only the owner may read
        write_manifest(temporary, (CONFIG, WEIGHTS))
        for name in (WEIGHTS, CONFIG, MANIFEST):
            (temporary / name).replace(path / name)
        fsync(path)
    except (OSError, SafetensorError) as error:
        raise HeedfulError(f"{path}: cannot write the model's {size:,} bytes: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return path


def load_model(folder: Path) -> nn.Module:
    """Load the weights of a folder in heedful's format, in evaluation mode; `heedful.load` is the public entry."""
    config = read_config(folder)
    verify_manifest(folder, (CONFIG, WEIGHTS))
    try:
        model = build_on_meta(make_config({key: value for key, value in config.items() if key != "format"}))
        model.load_state_dict(load_file(folder / WEIGHTS), assign=True)
    except (SafetensorError, RuntimeError, HeedfulError) as error:
        raise CheckpointError(f"{folder}: weights and configuration do not fit: {error}".replace("\n", " ")) from None
    return model.eval()


def is_heedful_format(folder: Path) -> bool:
    """Whether a model folder is in heedful's format, rather than a Hugging Face layout."""
    return read_config(folder).get("format") == FORMAT


def build_on_meta(config: ModelConfig) -> nn.Module:
    """Build a model on the meta device, without allocating or initializing weights."""
    with torch.device("meta"), SkipInitialization():
        model: nn.Module = build(config)
    return model


class SkipInitialization(TorchFunctionMode):
    """Skip random initialization of weights that will be loaded.

    On the meta device, initialization would import torch's compiler, which takes longer than all the rest of loading.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        initializes = getattr(func, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_", "div_")
        return (*args, *(kwargs or {}).values())[0] if initializes else func(*args, **(kwargs or {}))


def missing_folder_hint(folder: Path) -> str:
    """What to do about a missing folder: the nearest one beside it, or how to download a model of that name."""
    beside = folder.parent.iterdir() if folder.parent.is_dir() else iter(())
    models = [path.name for path in beside if (path / CONFIG).is_file()]
    if close := get_close_matches(folder.name, models, n=1, cutoff=0.8):
        return f"; did you mean '{folder.parent / close[0]}'?"
    name = str(folder).rpartition("huggingface.co/")[2]
    if not HUB_NAME.fullmatch(name):
        return ""
    directory = name.rpartition("/")[2]
    return f"; to use a model of the Hugging Face Hub, download it first: hf download {name} --local-dir {directory}"


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json of a model folder; a folder without a valid one is an error."""
    if not folder.is_dir():
        problem = "" if folder.exists() else f": it does not exist{missing_folder_hint(folder)}"
        raise CheckpointError(f"{folder} is not a model folder{problem}")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is not a model folder: it has no {CONFIG}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder / CONFIG} is not valid JSON: {error}") from None
    except OSError as error:
        raise CheckpointError(f"{folder / CONFIG} cannot be read: {error.strerror}") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{folder / CONFIG} must hold a JSON object")
    return config

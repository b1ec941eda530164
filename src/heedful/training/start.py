"""Training that goes on from a model: its vocabulary, its shape and its weights."""

from __future__ import annotations

from typing import Any

import torch

from heedful.errors import UsageError
from heedful.models.build import build
from heedful.models.config import ModelConfig
from heedful.text.special import SPECIAL_TOKENS
from heedful.trained import TOKENIZER, Trained, load


def load_start(folder: str, task: str, *, recurrent: bool) -> Trained:
    """The model to go on from, if it can be trained further for this task."""
    start = load(folder)
    if start.task != task:
        raise UsageError(f"{folder} holds a {start.model.config.family}: it can {start.task}, not {task}")
    if recurrent and not start.model.config.family.startswith("recurrent"):
        raise UsageError(f"{folder} holds a {start.model.config.family}: leave out --model recurrent")
    if not start.tokenizers:
        raise UsageError(f"{folder} has no {TOKENIZER}: without its vocabulary it cannot be trained further")
    for tokenizer in start.tokenizers:
        if tuple(tokenizer.pieces(range(len(SPECIAL_TOKENS)))) != SPECIAL_TOKENS:
            raise UsageError(f"{folder} has special tokens of its own: only models trained by heedful can go on")
    return start


def vocabulary_of(start: Trained, asked: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer's settings: the model's own, for its ids mean nothing else. To ask for others is an error."""
    own = {**start.tokenizers[0].config.model_dump(), "joint": len(start.tokenizers) == 1}
    for name, value in asked.items():
        if name not in ("vocabulary", "min_count") and value != own.get(name, value):
            raise UsageError(f"the vocabulary comes from {start.folder}: tokenizer.{name} is {own[name]}, not {value}")
    return {**asked, **own}


def check_fit(config: ModelConfig, start: Trained) -> None:
    """Settings that give the model another shape than the weights it is to begin with are an error that names them."""
    with torch.device("meta"):
        wanted = {name: weight.shape for name, weight in build(config).state_dict().items()}
    if wanted != {name: weight.shape for name, weight in start.model.state_dict().items()}:
        own = start.model.config.model_dump()
        other = [f"model.{name}={value} (it has {own.get(name)})" for name, value in config if own.get(name) != value]
        raise UsageError(f"the weights of {start.folder} do not fit {', '.join(other)}")

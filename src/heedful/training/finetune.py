"""Training that goes on from a model: its vocabulary, its body and, where they fit, its heads (T5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.errors import UsageError
from heedful.inference.trained import TOKENIZER_FILE, TrainedModel
from heedful.interop.conversion import load
from heedful.models.build import build
from heedful.models.model_config import ModelConfig
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.training.tasks.task import Task


@dataclass(frozen=True)
class PretrainedWeights:
    """A model to begin with, and what becomes of its weights."""

    model: TrainedModel
    loaded: dict[str, Tensor]
    new: dict[str, int]
    """Parts that are drawn afresh, with their parameters."""
    unused: dict[str, int]
    """Parts of the model that have no place here."""

    def to_json(self) -> dict[str, Any]:
        taken = sum(weight.numel() for weight in self.loaded.values())
        return {"from": str(self.model.folder), "taken": taken, "new": self.new, "left": self.unused}


def describe_pretrained(start: dict[str, Any]) -> str:
    """What was loaded, what is new, what was left over: from `to_json`."""

    def listed(parts: dict[str, int]) -> str:
        return ", ".join(f"{name} ({number:,})" for name, number in parts.items()) or "nothing"

    new, left = listed(start["new"]), listed(start["left"])
    return f"{start['taken']:,} weights of {start['from']}; new: {new}; left over: {left}"


def load_pretrained(folder: str, task: Task, *, recurrent: bool) -> TrainedModel:
    """The model to go on from, if its body can serve this task."""
    start = load(folder)
    family = start.model.config.family
    what = f"{'an' if family.startswith('e') else 'a'} {family}"
    if start.task != task.name and family not in task.pretrained_families:
        bodies = f"; {task.name} can begin with: {', '.join(task.pretrained_families)}" if task.pretrained_families else ""
        raise UsageError(f"{folder} holds {what}: it can {start.task}, not {task.name}{bodies}")
    if recurrent and not family.startswith("recurrent"):
        raise UsageError(f"{folder} holds {what}: leave out --model recurrent")
    if not start.tokenizers:
        raise UsageError(f"{folder} has no {TOKENIZER_FILE}: without its vocabulary it cannot be trained further")
    if family == "encoder":
        SpecialTokenTemplate.from_tokenizer(start.tokenizers[0])  # which says what is missing
    return start


def pretrained_tokenizer_settings(start: TrainedModel, asked: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer's settings: the model's own, for its ids mean nothing else. To ask for others is an error."""
    own = {**start.tokenizers[0].config.model_dump(), "joint": len(start.tokenizers) == 1}
    for name, value in asked.items():
        if name not in ("vocabulary", "min_count") and value != own.get(name, value):
            raise UsageError(f"the vocabulary comes from {start.folder}: tokenizer.{name} is {own[name]}, not {value}")
    return {**asked, **own}


def pretrained_model_settings(start: TrainedModel, task: Task) -> dict[str, Any]:
    """The settings of its body; and of its heads, where it has the task already."""
    config = start.model.config
    from_tokenizers = {"vocabulary", "target_vocabulary"}
    if start.task == task.name:
        return dict(config.model_dump(exclude=from_tokenizers, exclude_none=True))
    body = config.model_dump(exclude=from_tokenizers | {"tasks", "classes", "pooling"}, exclude_none=True)
    return {**body, **task.finetune_settings(config)}


def match_weights(start: TrainedModel, config: ModelConfig, task: Task, afresh: tuple[str, ...]) -> PretrainedWeights:
    """Which weights the new model begins with: all that fit, but for those drawn `afresh`.

    Only the task's own heads may be new; any other difference in shape is an error that names the settings.
    """
    with torch.device("meta"):
        wanted = build(config).state_dict()
    theirs = start.model.state_dict()
    taken = {
        name: theirs[name]
        for name, weight in wanted.items()
        if name in theirs and theirs[name].shape == weight.shape and not name.startswith(afresh)
    }
    lacking = [name for name in wanted if name not in taken]
    if not all(name.startswith(task.head_prefixes) for name in lacking):
        own = start.model.config.model_dump()
        other = [f"model.{name}={value} (it has {own.get(name)})" for name, value in config if own.get(name) != value]
        raise UsageError(f"the weights of {start.folder} do not fit {', '.join(other)}")
    left = {name: weight for name, weight in theirs.items() if name not in taken}
    return PretrainedWeights(start, taken, _by_part({name: wanted[name] for name in lacking}), _by_part(left))


def _by_part(weights: dict[str, Tensor]) -> dict[str, int]:
    parts: dict[str, int] = {}
    for name, weight in weights.items():
        part = ".".join(name.split(".")[:2])
        parts[part] = parts.get(part, 0) + weight.numel()
    return parts

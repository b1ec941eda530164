"""Fine-tuning: start from a model's vocabulary, its layers and, where they fit, its heads (T5)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.errors import UsageError
from heedful.inference.trained_model import TrainedModel
from heedful.loading import load
from heedful.model_files import TOKENIZER_FILE
from heedful.models.build import build
from heedful.models.model_config import ModelConfig
from heedful.syntax import argument
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.training.tasks.task import Task


@dataclass(frozen=True)
class WeightMatch:
    """The weights that a run loads from another model, and those it does not."""

    model: TrainedModel
    loaded: dict[str, Tensor]
    new: dict[str, int]
    """Randomly initialized parts, with their number of parameters."""
    unused: dict[str, int]
    """Parts of the other model that have no counterpart, with their number of parameters."""

    def to_json(self) -> dict[str, Any]:
        loaded = sum(weight.numel() for weight in self.loaded.values())
        return {"from": str(self.model.folder), "loaded": loaded, "new": self.new, "unused": self.unused}


def describe_pretrained(pretrained: dict[str, Any]) -> str:
    """Describe the loaded, new and unused weights of a `WeightMatch.to_json` in one line."""

    def listed(parts: dict[str, int]) -> str:
        return ", ".join(f"{name} ({count:,})" for name, count in parts.items()) or "nothing"

    new, unused = listed(pretrained["new"]), listed(pretrained["unused"])
    return f"{pretrained['loaded']:,} weights of {pretrained['from']}; new: {new}; unused: {unused}"


def load_pretrained(folder: str, task: Task, *, recurrent: bool) -> TrainedModel:
    """Load the model to fine-tune and check that its family can be used for this task."""
    base = load(folder, device="cpu")
    family = base.model.config.family
    article = "an" if family.startswith("e") else "a"
    if base.task != task.name and family not in task.pretrained_families:
        families = ", ".join(task.pretrained_families)
        hint = f"; {task.name} can start from: {families}" if families else ""
        raise UsageError(f"{folder} holds {article} {family} for {base.task}, not {task.name}{hint}")
    if recurrent and not family.startswith("recurrent"):
        raise UsageError(f"{folder} holds {article} {family}: leave out {argument('architecture', 'recurrent')}")
    if not base.tokenizers:
        raise UsageError(f"{folder} has no {TOKENIZER_FILE}: fine-tuning needs the model's vocabulary")
    if family == "encoder":
        SpecialTokenTemplate.from_tokenizer(base.tokenizers[0])  # raises if a special token is missing
    return base


def pretrained_tokenizer_settings(base: TrainedModel, requested: dict[str, Any]) -> dict[str, Any]:
    """The settings of the model's tokenizer, which is kept; requesting different ones is an error."""
    kept = {**base.tokenizers[0].config.model_dump(), "joint": len(base.tokenizers) == 1}
    for name, value in requested.items():
        if name not in ("vocabulary", "min_count") and value != kept.get(name, value):
            raise UsageError(f"the vocabulary comes from {base.folder}: tokenizer.{name} is {kept[name]}, not {value}")
    return {**requested, **kept}


def pretrained_model_settings(base: TrainedModel, task: Task) -> dict[str, Any]:
    """The model settings of the layers, and of the heads if the model is of the same task."""
    config = base.model.config
    from_tokenizers = {"vocabulary", "target_vocabulary"}
    if base.task == task.name:
        return dict(config.model_dump(exclude=from_tokenizers, exclude_none=True))
    layers = config.model_dump(exclude=from_tokenizers | {"tasks", "classes", "pooling"}, exclude_none=True)
    return {**layers, **task.finetune_settings(config)}


def match_weights(base: TrainedModel, config: ModelConfig, task: Task, reinitialized: tuple[str, ...]) -> WeightMatch:
    """Select the weights of `base` that fit `config` by name and shape, except those with a `reinitialized` prefix.

    Only the task's heads may be new; any other mismatch is an error that names the settings.
    """
    with torch.device("meta"):
        target = build(config).state_dict()
    source = base.model.state_dict()
    loaded = {
        name: source[name]
        for name, weight in target.items()
        if name in source and source[name].shape == weight.shape and not name.startswith(reinitialized)
    }
    missing = [name for name in target if name not in loaded]
    if not all(name.startswith(task.head_prefixes) for name in missing):
        settings = base.model.config.model_dump()
        different = [
            f"model.{name}={value} (it has {settings.get(name)})"
            for name, value in config
            if settings.get(name) != value
        ]
        raise UsageError(f"the weights of {base.folder} do not fit {', '.join(different)}")
    unused = {name: weight for name, weight in source.items() if name not in loaded}
    return WeightMatch(base, loaded, _count_by_part({name: target[name] for name in missing}), _count_by_part(unused))


def _count_by_part(weights: dict[str, Tensor]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for name, weight in weights.items():
        counts[".".join(name.split(".")[:2])] += weight.numel()
    return dict(counts)

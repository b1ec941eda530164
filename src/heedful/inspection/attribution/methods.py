"""The attribution methods by name, with their descriptions and the models they support."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from heedful.errors import UsageError, nearest
from heedful.inspection.attribution.attention_attribution import aligned_head, mean_attention, rollout
from heedful.inspection.attribution.explained_output import ExplainedOutput, ExplainSource, Scores
from heedful.inspection.attribution.gradients import gradient_times_input, integrated_gradients
from heedful.inspection.attribution.leave_out import leave_one_out, occlusion
from heedful.layers.taps import tap_names


@dataclass(frozen=True)
class Method:
    """An attribution method."""

    name: str
    description: str
    attribute: Callable[[ExplainSource, Sequence[ExplainedOutput]], list[Scores]]
    obstacle: Callable[[ExplainSource], str]
    """Why a model does not support this method; empty if it does."""


def _none(source: ExplainSource) -> str:
    return ""


def _without_aligned_head(source: ExplainSource) -> str:
    return "" if source.aligned_head else "only translators with attention have a head that aligns words"


def _without_attention(source: ExplainSource) -> str:
    has_attention = any(name.endswith(".weights") for name in tap_names(source.model))
    return "" if has_attention else "this model has no attention"


def _without_layers(source: ExplainSource) -> str:
    if source.model.config.family.startswith("recurrent"):
        return "a recurrent model has no layers of attention to roll out"
    return _without_attention(source)


ATTRIBUTION_METHODS = {
    method.name: method
    for method in (
        Method("aligned-head", "attention of the head that aligns words", aligned_head, _without_aligned_head),
        Method("mean-attention", "mean attention of all heads and layers", mean_attention, _without_attention),
        Method("rollout", "attention multiplied through the layers", rollout, _without_layers),
        Method("gradient-x-input", "gradient times the word's vector", gradient_times_input, _none),
        Method("integrated-gradients", "gradient along the path from no word", integrated_gradients, _none),
        Method("occlusion", "fall of log p without the word", occlusion, _none),
        Method("leave-one-out", "fall of log p when the aligned head may not read the word", leave_one_out,
               _without_aligned_head),
    )
}  # fmt: skip


def available_methods(source: ExplainSource) -> list[str]:
    """The names of the methods that this model supports."""
    return [name for name, method in ATTRIBUTION_METHODS.items() if not method.obstacle(source)]


def checked_methods(source: ExplainSource, names: Sequence[str] | None) -> list[str]:
    """These methods without duplicates, or all that the model supports; UsageError for an unsupported one."""
    if names is None:
        return available_methods(source)
    if isinstance(names, str):
        names = [names]
    for name in names:
        if name not in ATTRIBUTION_METHODS:
            raise UsageError(f"no attribution method is called '{name}'; {nearest(name, ATTRIBUTION_METHODS)}")
        if obstacle := ATTRIBUTION_METHODS[name].obstacle(source):
            raise UsageError(f"{name} cannot explain {source.short_name}: {obstacle}; {_advice(source)}")
    if not names:
        raise UsageError(f"name one attribution method or more; {_advice(source)}")
    return list(dict.fromkeys(names))


def _advice(source: ExplainSource) -> str:
    return f"use {', '.join(available_methods(source))}"


def attribute(
    source: ExplainSource, outputs: Sequence[ExplainedOutput], methods: Sequence[str]
) -> dict[str, list[Scores]]:
    """For each method and each output, a score for each of the output's input words."""
    return {name: ATTRIBUTION_METHODS[name].attribute(source, outputs) for name in methods}

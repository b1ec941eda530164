"""Resolve interventions into tap edits, which change the values of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import singledispatch
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from heedful.errors import UsageError
from heedful.interventions.kinds import (
    Ablate,
    Hide,
    Intervention,
    Patch,
    Replace,
    Scale,
    Steer,
    Uniform,
    Unmask,
    as_interventions,
)
from heedful.interventions.parts import Part, check_heads, gate_names, is_decoded, matching_parts
from heedful.interventions.patching import PatchEdit, lengths_differ
from heedful.layers.taps import Edit, ShownAs, TapEdits, TapSite


@runtime_checkable
class InterventionSource(Protocol):
    """The trained model that interventions change: its taps, means and texts."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> nn.Module: ...

    def activation_mean(self, tap: str) -> Tensor:
        """The mean value at a tap over the validation text, without batch and tokens."""

    def input_tokens(self, text: str, words: Sequence[int]) -> Sequence[int]:
        """The positions in the model's input of the tokens of these words of a text."""

    def input_length(self, text: str) -> int:
        """The number of tokens that the model reads of a text."""

    def recorded_value(self, tap: str, text: str, target: str | None) -> Tensor:
        """The value at a tap when the model reads a text, and decodes it or reads the target: one row, all tokens."""


def resolve(source: InterventionSource, interventions: Sequence[Intervention], text: str | None = None) -> TapEdits:
    """The tap edits that implement these interventions; `text` is needed if one of them depends on the text."""
    edits: list[tuple[str, Edit]] = []
    for intervention in interventions:
        for part in _parts(source.model, intervention):
            edits += _edits(intervention, part, source, text)
    return TapEdits(tuple(edits), recomputes=any(isinstance(intervention, Unmask) for intervention in interventions))


def check_parts(model: nn.Module, interventions: Sequence[Intervention]) -> None:
    """Raise UsageError for a part or head that the model does not have."""
    for intervention in interventions:
        for part in _parts(model, intervention):
            check_heads(part, getattr(intervention, "heads", None))


class PlainModel:
    """A model without tokenizer, for interventions that name no words."""

    name = "a plain model"

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def activation_mean(self, tap: str) -> Tensor:
        raise UsageError("a plain model has no measured means; ablate to zero, or use what heedful.load returns")

    def input_tokens(self, text: str, words: Sequence[int]) -> Sequence[int]:
        raise UsageError("a plain model has no words; name tokens, or use what heedful.load returns")

    def input_length(self, text: str) -> int:
        raise UsageError("a plain model reads no texts; use what heedful.load returns, or Replace with a function")

    def recorded_value(self, tap: str, text: str, target: str | None) -> Tensor:
        raise UsageError("a plain model reads no texts; use what heedful.load returns, or Replace with a function")


@contextmanager
def intervene(model: nn.Module, interventions: Sequence[Intervention]) -> Iterator[None]:
    """Apply interventions to the calls of a plain model that this thread makes inside the block.

    with heedful.intervene(model, [heedful.Ablate("decoder.2.cross", heads=[3])]):
        logits = model(source, target)
    """
    with resolve(PlainModel(model), as_interventions(interventions) or ()).applied(model):
        yield


def _parts(model: nn.Module, intervention: Intervention) -> list[Part]:
    """The parts an intervention changes; in a layer or stack, one that changes attention applies to attentions only."""
    parts = matching_parts(model, intervention.part)
    if len(parts) == 1 or not isinstance(intervention, Uniform | Hide | Unmask):
        return parts
    kinds = ("attention",) if isinstance(intervention, Unmask) else ("attention", "cross-attention")
    return [part for part in parts if part.kind in kinds] or parts


@singledispatch
def _edits(
    intervention: Intervention, part: Part, source: InterventionSource, text: str | None
) -> list[tuple[str, Edit]]:
    """The tap edits of one intervention on one part."""
    raise UsageError(f"{type(intervention).__name__} is not an intervention")


@_edits.register
def _(intervention: Ablate, part: Part, source: InterventionSource, text: str | None) -> list[tuple[str, Edit]]:
    heads = check_heads(part, intervention.heads)
    tap = _value_tap(part, heads)
    mean = source.activation_mean(tap) if intervention.to == "mean" else None

    def switch_off(value: Tensor, site: TapSite) -> Tensor:
        if mean is None:
            return _on_heads(value, torch.zeros_like(value), heads)
        constant = mean.to(value)
        constant = constant[:, None] if value.dim() == 4 else constant  # heads × tokens × width
        return _on_heads(value, constant.expand_as(value), heads)

    edits: list[tuple[str, Edit]] = [(tap, switch_off)]
    if part.is_attention and mean is None:
        edits.append((part.attention_tap("weights"), ShownAs(switch_off)))  # no value is read
    return edits


@_edits.register
def _(intervention: Scale, part: Part, source: InterventionSource, text: str | None) -> list[tuple[str, Edit]]:
    heads = check_heads(part, intervention.heads)

    def scale(value: Tensor, site: TapSite) -> Tensor:
        if value.dtype == torch.bool:
            raise UsageError(f"{part.name} is a mask, which has no factor; ablate it, or hide words or tokens")
        return _on_heads(value, value * intervention.factor, heads)

    return [(_value_tap(part, heads), scale)]


@_edits.register
def _(intervention: Uniform, part: Part, source: InterventionSource, text: str | None) -> list[tuple[str, Edit]]:
    heads = check_heads(part, intervention.heads)

    def make_uniform(weights: Tensor, site: TapSite) -> Tensor:
        assert site.allowed is not None
        allowed = site.allowed.expand_as(weights).to(weights)
        return _on_heads(weights, allowed / allowed.sum(-1, keepdim=True).clamp(min=1), heads)

    return [(part.attention_tap("weights"), make_uniform)]


@_edits.register
def _(intervention: Hide, part: Part, source: InterventionSource, text: str | None) -> list[tuple[str, Edit]]:
    check_heads(part, None)
    words = source.input_tokens(text or "", intervention.words) if intervention.words else ()
    tokens = sorted({*intervention.tokens, *words})
    grows = part.kind != "cross-attention" and is_decoded(source.model, part.attention_tap("mask"))

    def hide(allowed: Tensor, site: TapSite) -> Tensor:
        hidden = torch.zeros(allowed.shape[-1], dtype=torch.bool, device=allowed.device)
        if tokens[-1] >= len(hidden) and not grows:
            raise UsageError(f"{part.name} reads {len(hidden)} tokens: there is no token {tokens[-1]} to hide")
        hidden[[token for token in tokens if token < len(hidden)]] = True
        return _where_head(allowed, allowed & ~hidden, part)

    return [(part.attention_tap("mask"), hide)]


@_edits.register
def _(intervention: Unmask, part: Part, source: InterventionSource, text: str | None) -> list[tuple[str, Edit]]:
    if part.kind != "attention":
        raise UsageError(f"{part.name} has no causal mask: only self-attention has one")
    if not _is_causal(source.model, part):
        raise UsageError(f"{part.name} has no causal mask: it reads later tokens already")
    window = getattr(source.model.config, "window", None)

    def lift(allowed: Tensor, site: TapSite) -> Tensor:
        queries, keys = allowed.shape[-2:]
        later = torch.ones(queries, keys, dtype=torch.bool, device=allowed.device).triu(keys - queries + 1)
        if window is not None:
            later = later.tril(keys - queries + window - 1)
        return _where_head(allowed, allowed | later, part)

    return [(part.attention_tap("mask"), lift)]


@_edits.register
def _(intervention: Patch, part: Part, source: InterventionSource, text: str | None) -> list[tuple[str, Edit]]:
    heads = check_heads(part, intervention.heads)
    tap = _value_tap(part, heads)
    patched = source.recorded_value(tap, intervention.text, intervention.target)
    grows, by_time_step = is_decoded(source.model, tap), tap in gate_names(source.model)
    if by_time_step and not grows and intervention.tokens is None:
        length = source.input_length(text or "")
        if length != patched.shape[1]:
            raise UsageError(lengths_differ(part, intervention, length, patched.shape[1]))
    edit = PatchEdit(intervention, part, tap, patched, grows, by_time_step)

    def patch(value: Tensor, site: TapSite) -> Tensor:
        return _on_heads(value, edit(value, site), heads)

    return [(tap, patch)]


@_edits.register
def _(intervention: Steer, part: Part, source: InterventionSource, text: str | None) -> list[tuple[str, Edit]]:
    tap = _value_tap(part, check_heads(part, None))
    if intervention.vector is not None:
        direction = torch.tensor(intervention.vector)
    else:
        sides = (intervention.toward, intervention.away)
        toward, away = (None if side is None else source.recorded_value(tap, side, None).mean(1)[0] for side in sides)
        assert toward is not None
        direction = toward if away is None else toward - away

    def steer(value: Tensor, site: TapSite) -> Tensor:
        if value.dim() != 3 or direction.dim() != 1 or len(direction) != value.shape[-1]:
            raise UsageError(
                f"{part.name} has values of shape {tuple(value.shape)}: a vector of {direction.numel()} numbers does "
                "not fit; steer a part whose values are vectors"
            )
        return value + intervention.strength * direction.to(value)

    return [(tap, steer)]


@_edits.register
def _(intervention: Replace, part: Part, source: InterventionSource, text: str | None) -> list[tuple[str, Edit]]:
    if part.head is None or part.is_recurrent:
        return [(part.tap, intervention.function)]
    head = part.head

    def replace(value: Tensor, site: TapSite) -> Tensor | None:
        new: Tensor | None = intervention.function(value[:, head], site)
        if not isinstance(new, Tensor):  # None: perhaps changed in place
            return new
        if new.shape != value[:, head].shape:
            raise UsageError(f"{part.name} has shape {tuple(value[:, head].shape)}, its replacement {tuple(new.shape)}")
        return value.index_copy(1, torch.tensor([head], device=value.device), new[:, None])

    return [(part.attention_tap("heads"), replace)]


def _is_causal(model: Any, part: Part) -> bool:
    """Whether self-attention reads no later token."""
    config = model.config
    return bool(config.decoder_causal if is_decoded(model, part.tap) else config.encoder_causal)


def _value_tap(part: Part, heads: Sequence[int] | None) -> str:
    """The tap of a part's whole value or, for some heads, of the heads' values."""
    return part.tap if heads is None or part.is_recurrent else part.attention_tap("heads")


def _on_heads(value: Tensor, changed: Tensor, heads: Sequence[int] | None) -> Tensor:
    """The changed value at these heads (None: everywhere)."""
    if heads is None or value.dim() != 4:
        return changed
    index = torch.zeros(value.shape[1], dtype=torch.bool, device=value.device)
    index[list(heads)] = True
    return torch.where(index[:, None, None], changed, value)


def _where_head(allowed: Tensor, changed: Tensor, part: Part) -> Tensor:
    """The changed attention mask, for one head only where the part is one."""
    if part.head is None or part.heads == 1:
        return changed
    index = torch.arange(part.heads, device=allowed.device)[:, None, None] == part.head
    return torch.where(index, changed, allowed)

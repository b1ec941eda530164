"""Parts of a model that interventions name: attentions, heads, feed-forward networks, skips, positions, taps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import nn

from heedful.errors import UsageError
from heedful.layers.block import Stack
from heedful.layers.feed_forward import FeedForward
from heedful.layers.multi_head_attention import CrossAttention, MultiHeadAttention
from heedful.layers.taps import tap_names
from heedful.models.recurrent_attention import RecurrentAttention
from heedful.models.window_network import WindowNetwork
from heedful.syntax import by_interface

PartKind = Literal["attention", "cross-attention", "feed-forward", "skip", "positions", "tap"]


@dataclass(frozen=True)
class Part:
    """A named part of a model and the taps through which it is changed."""

    name: str
    kind: PartKind
    tap: str
    """The tap of the part's whole output."""
    heads: int = 0
    """Number of attention heads; 0 for a part without heads."""
    head: int | None = None
    """For a single head, its number."""

    def attention_tap(self, point: str) -> str:
        """A tap of this attention: "weights", "mask", "heads" …"""
        if not self.is_attention:
            raise UsageError(f"{self.name} is not an attention: it has no attention {point}")
        return f"{self.name.partition('.head.')[0]}.{point}"

    @property
    def is_attention(self) -> bool:
        return self.kind in ("attention", "cross-attention")

    @property
    def is_recurrent(self) -> bool:
        """Whether this is the one attention of a recurrent encoder-decoder, which has no head axis in its context."""
        return self.tap == "context" and self.is_attention


def model_parts(model: nn.Module) -> dict[str, Part]:
    """Every part of the model by its name. Layers and heads are counted from 0."""
    parts: dict[str, Part] = {}
    taps = tap_names(model)
    for path, module in model.named_modules():
        name = ".".join(piece for piece in path.split(".") if piece not in ("blocks", "_orig_mod"))
        if isinstance(module, MultiHeadAttention):
            kind: PartKind = "cross-attention" if isinstance(module, CrossAttention) else "attention"
            _add_attention(parts, name, kind, f"{name}.output", module.heads)
        elif isinstance(module, RecurrentAttention):
            _add_attention(parts, name, "cross-attention", "context", 1)
        elif isinstance(module, FeedForward):
            parts[name] = Part(name, "feed-forward", f"{name}.output")
        elif isinstance(module, WindowNetwork):
            layers = (f"{name}.{tap}" for tap in module.hidden_taps)
            parts |= {layer: Part(layer, "feed-forward", layer) for layer in layers}
    for tap in taps:
        if tap.endswith(".skip"):
            parts[tap] = Part(tap, "skip", tap)
    parts |= {name: Part(name, "positions", tap) for name, tap in _position_taps(model, taps).items()}
    return parts | {tap: Part(tap, "tap", tap) for tap in taps if tap not in parts}


def part_names(model: nn.Module) -> list[str]:
    """The names of all parts of this model that an intervention can change."""
    return list(model_parts(model))


def matching_parts(model: nn.Module, pattern: str) -> list[Part]:
    """The parts that a name or pattern stands for; a layer or a stack stands for its attentions and feed-forward nets.

    Raises UsageError, with the nearest names, if nothing matches.
    """
    parts = model_parts(model)
    if pattern in parts:
        return [parts[pattern]]
    if pattern == "positions":
        pattern = "*.positions"
        if not any(part.kind == "positions" for part in parts.values()):
            raise UsageError(
                "this model has no positions to change: its order comes from recurrence or the causal mask"
            )
    named = [part for name, part in parts.items() if fnmatchcase(name, pattern)]
    if "head" not in pattern.split("."):
        named = [part for part in named if part.head is None]
    matching = [part for part in named if part.kind != "tap"] or named  # "decoder.*" means no tap inside a part
    if not matching:  # a layer or a stack
        matching = [part for name, part in parts.items() if _is_sublayer(part) and _within(name, pattern)]
    if not matching:
        if ".head." in pattern and (attention := parts.get(pattern.partition(".head.")[0])):
            raise UsageError(f"no head {pattern.rpartition('.')[2]} in {attention.name}: {_head_range(attention)}")
        raise UsageError(f"no part of this model is called '{pattern}'; {nearest_parts(pattern, parts)}")
    return matching


def nearest_parts(name: str, parts: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest names, and how to list all."""
    close = [f"'{match}'" for match in get_close_matches(name, list(parts), n=3)]
    listed = f"are listed by {by_interface('heedful.part_names(model)', 'heedful look MODEL --list')}"
    if not close:
        return f"all parts {listed}"
    return f"did you mean {' or '.join(filter(None, (', '.join(close[:-1]), close[-1])))}? All {listed}"


def check_heads(part: Part, heads: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The selected heads: those of the intervention, or the one in the part's name; UsageError if out of range."""
    if part.head is not None:
        if heads:
            raise UsageError(f"{part.name} is one head already; name heads with the attention instead")
        return (part.head,)
    if heads is None:
        return None
    if not part.is_attention:
        raise UsageError(f"{part.name} has no heads; leave heads out")
    for head in heads:
        if head >= part.heads:
            raise UsageError(f"no head {head} in {part.name}: {_head_range(part)}")
    return heads


def gate_names(model: nn.Module) -> set[str]:
    """The taps of the gates and hidden states of recurrent layers, which pass one token at a time."""
    modules = ((path, getattr(module, "gate_taps", ())) for path, module in model.named_modules())
    return {f"{path}.{gate}" for path, gates in modules for gate in gates}


def is_decoded(model: Any, tap: str) -> bool:
    """Whether the values at a tap belong to the tokens that a decoder reads, which grow at every decode step."""
    family = model.config.family
    if not family.endswith("encoder_decoder"):
        return bool(family.endswith("decoder"))
    reads_memory = "cross" in tap.split(".") and tap.endswith((".keys", ".values"))
    return not reads_memory and not tap.startswith(("encoder", "source", "initial_state"))


def _add_attention(parts: dict[str, Part], name: str, kind: PartKind, tap: str, heads: int) -> None:
    parts[name] = Part(name, kind, tap, heads)
    for head in range(heads):
        parts[f"{name}.head.{head}"] = Part(f"{name}.head.{head}", kind, tap, heads, head)


def _position_taps(model: nn.Module, taps: list[str]) -> dict[str, str]:
    """The tap through which each stack gets its positions: added to embeddings, or inside its attention."""
    embeddings = {"encoder": ("source", "embedding"), "decoder": ("target", "embedding")}
    stacks = [name for name, module in model.named_children() if isinstance(module, Stack)]
    return {
        f"{stack}.positions": f"{owner}.positions"
        for stack in stacks
        for owner in (*embeddings.get(stack, ()), stack)
        if f"{owner}.positions" in taps
    }


def _is_sublayer(part: Part) -> bool:
    return part.head is None and part.kind in ("attention", "cross-attention", "feed-forward")


def _within(name: str, pattern: str) -> bool:
    """Whether the first components of a name match the pattern: "decoder.2.cross" is within "decoder.2"."""
    return fnmatchcase(".".join(name.split(".")[: pattern.count(".") + 1]), pattern)


def _head_range(part: Part) -> str:
    return "it has one head, 0" if part.heads == 1 else f"it has heads 0 to {part.heads - 1}"

"""Walk one token through one layer: all vectors and attention scores of the computation, as numbers.

walk = walkthrough(translator, text_pass, layer=0, position=3, head=1)
walk.attention["cross"].scores        # Q Kᵀ / √d_k of this token's query
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from heedful.errors import UsageError
from heedful.inspection.predictions import LabelSource, rank_outputs
from heedful.inspection.text_pass import TextPass, run_passes
from heedful.layers.taps import Recording, record, tap_names

Numbers = list[float]
StackName = Literal["encoder", "decoder"]
Columns = Literal["inputs", "target"]
SUBLAYERS = ("attention", "cross", "feed_forward")
HEAD_TAPS = ("queries", "keys", "values", "scores", "weights", "heads")
VECTOR_TAPS = ("norm", "skip", "residual", "output")


@dataclass(frozen=True)
class AttentionStep:
    """One head's attention from one token: score, softmax, weighted sum."""

    head: int
    columns: Columns
    """The tokens that are read."""
    query: Numbers
    keys: list[Numbers]
    values: list[Numbers]
    scores: list[float | None]
    """q·k/√d_k (or the model's own score) for each token; None where the mask forbids it."""
    weights: Numbers
    output: Numbers
    """Σ weight × value."""


@dataclass(frozen=True)
class Walkthrough:
    """The numbers of one token on its way through one layer, and the predictions from the last layer."""

    stack: StackName
    layers: int
    layer: int
    heads: int
    position: int
    tokens: tuple[str, ...]
    """The tokens of the stack's input; `position` counts them from 0."""
    inputs: tuple[str, ...]
    """The tokens that the encoder reads, or the only ones."""
    embedding: Numbers
    """The token's vector, as it enters the first layer before positions are added."""
    positions: Numbers | None
    """The vector added for the position, or the angles of its rotation; None without positions."""
    entry: Numbers
    """The input vector of this layer."""
    attention: Mapping[str, AttentionStep]
    """By sub-layer: "attention" and, in a decoder that reads an encoder, "cross"."""
    vectors: Mapping[str, Numbers]
    """The token's vectors inside the layer by tap: "attention.norm", "cross.output", "feed_forward.hidden" …"""
    top: tuple[tuple[str, float], ...] = ()
    """The most probable answers at this position with their probabilities; empty for models without predictions."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings that the equations name: width, d_k, activation, norm order …"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def walkthrough(
    source: Any, text_pass: TextPass, *, stack: StackName | None = None, layer: int = 0, position: int = 0,
    head: int = 0, top: int = 8,
) -> Walkthrough:  # fmt: skip
    """Record the computation of one token in one layer of a transformer, in one forward pass of the whole text."""
    model, names = source.model, set(tap_names(source.model))
    chosen: StackName = stack or ("decoder" if "decoder.output" in names else "encoder")
    layers = sum(f"{chosen}.{layer}.attention.residual" in names for layer in range(1000))
    if not layers:
        raise UsageError(f"a model of the family '{model.config.family}' has no {chosen} layers to walk through")
    row = text_pass.target if chosen == "decoder" and text_pass.target is not None else text_pass.inputs
    _check_range("layer", layer, layers)
    _check_range("position", position, len(row))
    prefix, owner = f"{chosen}.{layer}", _embedding(names, chosen)
    with torch.inference_mode(), record(model, *_taps(names, prefix, chosen, owner)) as recorded:
        logits = run_passes(model, [text_pass])[0]
    heads = recorded[f"{prefix}.attention.weights"].shape[1]
    _check_range("head", head, heads)
    vector = _Vectors(recorded, position)
    outputs = [index for index, output in enumerate(text_pass.outputs) if output.position == position]
    self_columns: Columns = "target" if row is text_pass.target else "inputs"
    predicts = chosen == "decoder" or "decoder.output" not in names
    return Walkthrough(
        stack=chosen,
        layers=layers,
        layer=layer,
        heads=heads,
        position=position,
        tokens=row.pieces,
        inputs=text_pass.inputs.pieces,
        embedding=vector(f"{owner}.tokens"),
        positions=_positions(recorded, names, owner, chosen, position),
        entry=_entry(recorded, vector, prefix),
        attention={
            name: _attention_step(recorded, f"{prefix}.{name}", columns, position, head)
            for name, columns in (("attention", self_columns), ("cross", "inputs"))
            if f"{prefix}.{name}.weights" in recorded
        },
        vectors={
            tap.removeprefix(f"{prefix}."): vector(tap)
            for tap in recorded
            if tap.startswith(f"{prefix}.") and tap.rpartition(".")[2] in (*VECTOR_TAPS, "hidden")
        },
        top=_most_probable(source, text_pass, logits, outputs, top) if predicts and outputs else (),
        settings=_settings(model.config),
    )


def _taps(names: set[str], prefix: str, stack: str, owner: str) -> list[str]:
    inside = [f"{prefix}.{sublayer}.{tap}" for sublayer in SUBLAYERS for tap in (*HEAD_TAPS, *VECTOR_TAPS, "hidden")]
    around = [f"{owner}.tokens", f"{owner}.positions", f"{stack}.positions"]
    return [tap for tap in (*inside, *around) if tap in names]


def _embedding(names: set[str], stack: str) -> str:
    """The module that embeds this stack's tokens."""
    candidates = ("source", "embedding") if stack == "encoder" else ("target", "embedding")
    return next(name for name in candidates if f"{name}.tokens" in names)


class _Vectors:
    """The recorded vectors of one position, as lists."""

    def __init__(self, recorded: Recording, position: int) -> None:
        self.recorded, self.position = recorded, position

    def __call__(self, tap: str) -> Numbers:
        return _numbers(self.recorded[tap][0, self.position])


def _entry(recorded: Recording, vector: _Vectors, prefix: str) -> Numbers:
    skip = f"{prefix}.attention.skip"
    return vector(skip) if skip in recorded else []


def _positions(recorded: Recording, names: set[str], owner: str, stack: str, position: int) -> Numbers | None:
    for tap in (f"{owner}.positions", f"{stack}.positions"):
        if tap in recorded:
            value = recorded[tap]
            if value.dim() > 3:  # ALiBi: a bias for each head and pair of positions
                return _numbers(value[0, 0, position])
            return _numbers(value.reshape(-1, *value.shape[-2:])[0, position])
    return None


def _attention_step(recorded: Recording, part: str, columns: Columns, position: int, head: int) -> AttentionStep:
    heads = recorded[f"{part}.weights"].shape[1]

    def of_head(tap: str) -> torch.Tensor:
        value = recorded[f"{part}.{tap}"][0]
        return value[head // (heads // len(value))]  # key and value heads may be shared

    weights, scores = of_head("weights")[position], of_head("scores")[position]
    allowed = recorded.sites[f"{part}.scores"][0].allowed
    assert allowed is not None, "attention passes its mask to the tap of its scores"
    may_read = allowed.expand(-1, heads, -1, -1)[0, head, position].tolist()
    return AttentionStep(
        head=head,
        columns=columns,
        query=_numbers(of_head("queries")[position]),
        keys=[_numbers(key) for key in of_head("keys")],
        values=[_numbers(value) for value in of_head("values")],
        scores=[score if may else None for score, may in zip(_numbers(scores), may_read, strict=True)],
        weights=_numbers(weights),
        output=_numbers(of_head("heads")[position]),
    )


def _most_probable(
    source: LabelSource, text_pass: TextPass, logits: torch.Tensor, outputs: Sequence[int], top: int
) -> tuple[tuple[str, float], ...]:
    ranked = rank_outputs(source, text_pass, logits, top)[outputs[0]]
    return tuple((prediction.text, prediction.probability) for prediction in ranked.top)


def _settings(config: Any) -> dict[str, Any]:
    names = ("width", "feed_forward", "activation", "norm", "norm_order", "positions", "score", "softmax")
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


def _check_range(name: str, value: int, size: int) -> None:
    if not 0 <= value < size:
        raise UsageError(f"there is no {name} {value}: this model and text have {name}s 0 to {size - 1}")


def _numbers(values: torch.Tensor) -> Numbers:
    rounded: npt.NDArray[np.float64] = values.detach().float().cpu().numpy().astype(np.float64).round(6)
    result: Numbers = rounded.tolist()
    return result

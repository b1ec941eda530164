"""Logit lens: the predictions that the model's head makes from each layer's states (nostalgebraist 2020).

The state after every layer is passed through the model's last norm and its head. Early layers were not trained for
this: the lens shows how the answer forms, not what a layer does. In a recurrent model each layer's state replaces the
last layer's, with the context that attention computes for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from heedful.data.collate import pad_sequences
from heedful.errors import UsageError
from heedful.inspection.layer_states import LayerStates, layer_taps, record_layers
from heedful.inspection.predictions import LabelSource, RankedOutput, rank_outputs
from heedful.inspection.text_pass import TextPass, pass_logits, pass_states
from heedful.models.recurrent import RecurrentEncoderDecoder


@dataclass(frozen=True)
class LensLayer:
    """The predictions from one layer's states: the most probable labels at each output."""

    name: str
    outputs: tuple[RankedOutput, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "positions": [
                {"top": [top.to_json() for top in output.top], "probability": output.probability, "rank": output.rank}
                for output in self.outputs
            ],
        }


@dataclass(frozen=True)
class LogitLens:
    """The predictions from every layer's states, from the first layer up; those of the last are the model's."""

    layers: tuple[LensLayer, ...]

    def to_json(self) -> dict[str, Any]:
        return {"layers": [layer.to_json() for layer in self.layers]}


def logit_lens(source: LabelSource, model: Any, passes: Sequence[TextPass], top: int = 5) -> list[LogitLens]:
    """The logit lens of passes that share a batch."""
    if passes[0].head is None:
        raise UsageError("this model has no head to read its layers by: it makes vectors, not predictions")
    layers: list[list[LensLayer]] = [[] for _ in passes]
    states = record_layers(model, output_stack(model), lambda: pass_states(model, passes))
    for name, read_out in _head_inputs(model, states, passes).items():
        for lens, text_pass, logits in zip(layers, passes, pass_logits(model, read_out, passes), strict=True):
            lens.append(LensLayer(name, tuple(rank_outputs(source, text_pass, logits, top))))
    return [LogitLens(tuple(outputs)) for outputs in layers]


def output_stack(model: Any) -> str:
    """The stack of layers under the head: the decoder, or the encoder of a model without one."""
    return "decoder" if layer_taps(model, "decoder") else "encoder"


def _head_inputs(model: Any, states: LayerStates, passes: Sequence[TextPass]) -> dict[str, Tensor]:
    """The states that the head reads for each layer."""
    if isinstance(model, RecurrentEncoderDecoder):
        encoded = model.start(*pad_sequences([text_pass.inputs.ids for text_pass in passes], device=model.device))
        return {name: model.with_context(state, encoded) for name, state in states.items()}
    norm = getattr(getattr(model, output_stack(model)), "norm", None)
    return {name: state if norm is None else norm(state) for name, state in states.items()}

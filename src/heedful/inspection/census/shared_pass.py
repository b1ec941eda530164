"""Run many ablations of a batch of texts together.

The rows of one batch carry different ablations, and only what an ablation can change is computed again: its own layer
and those above and, for an encoder layer, the whole decoder. Results equal those of one call per ablation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from heedful.data.collate import pad_sequences
from heedful.inspection.text_pass import TextPass, pass_states
from heedful.layers.masks import Mask, padding
from heedful.layers.taps import Edit, TapEdits, TapSite, record, tap_names
from heedful.models.encoder_decoder import EncoderOutput
from heedful.shapes import Float

LAYER_INPUT = "layer_input"
"""The tap of the states that a layer of a transformer reads."""


@dataclass(frozen=True)
class Ablation:
    """The tap edits that ablate one part in one way (to zero or to its mean)."""

    edits: tuple[tuple[str, Edit], ...]
    layer: tuple[str, int] | None
    """The stack and layer that contain all edits; None: the whole model is run again."""


def ablated_layer(model: Any, taps: Sequence[str]) -> tuple[str, int] | None:
    """The layer of a transformer's stack that contains all these taps; None if there is no single one."""
    known, layers = tap_names(model), set()
    for tap in taps:
        stack, _, rest = tap.partition(".")
        number = rest.partition(".")[0]
        if f"{stack}.{number}.{LAYER_INPUT}" not in known:
            return None
        layers.add((stack, int(number)))
    return layers.pop() if len(layers) == 1 else None


class SharedPass:
    """A batch of passes of one kind, run once unchanged, then with ablations from the layer of each upwards."""

    def __init__(self, model: Any, passes: Sequence[TextPass]) -> None:
        self.model, self.passes = model, passes
        self.tokens, self.lengths = pad_sequences([text_pass.inputs.ids for text_pass in passes], device=model.device)
        self.target: Tensor | None = None
        if passes[0].target is not None:
            rows = [text_pass.output_row.ids for text_pass in passes]
            self.target, _ = pad_sequences(rows, device=model.device)
        kept = [tap for tap in tap_names(model) if tap.endswith(f".{LAYER_INPUT}") or tap == "encoder.output"]
        with record(model, *kept) as recorded:
            self.states = pass_states(model, passes)
        self.recorded = dict(recorded)

    def ablated_states(
        self, ablations: Sequence[Ablation], max_tokens: int
    ) -> Iterator[tuple[int, Float[Tensor, "batch tokens width"]]]:
        """The index of each ablation, and the states that the head reads under it; not in order.

        Ablations of one layer are run together, in batches of at most `max_tokens` tokens, padding included.
        """
        by_layer: defaultdict[tuple[str, int] | None, list[int]] = defaultdict(list)
        for index, ablation in enumerate(ablations):
            by_layer[ablation.layer].append(index)
        size = self.tokens.numel() + (0 if self.target is None else self.target.numel())
        for layer, indices in by_layer.items():
            together = 1 if layer is None else max(1, max_tokens // size)
            for start in range(0, len(indices), together):
                chunk = indices[start : start + together]
                states = self._run([ablations[index] for index in chunk], layer)
                yield from zip(chunk, states.chunk(len(chunk)), strict=True)

    def _run(self, ablations: Sequence[Ablation], layer: tuple[str, int] | None) -> Tensor:
        """The states under each ablation, concatenated along the batch."""
        if layer is None:
            (ablation,) = ablations
            with TapEdits(ablation.edits).applied(self.model):
                return pass_states(self.model, self.passes)
        by_tap: defaultdict[str, list[tuple[slice, Edit]]] = defaultdict(list)
        for number, ablation in enumerate(ablations):
            rows = slice(number * len(self.passes), (number + 1) * len(self.passes))
            for tap, edit in ablation.edits:
                by_tap[tap].append((rows, edit))
        edits = tuple((tap, _edit_rows(entries)) for tap, entries in by_tap.items())
        with TapEdits(edits).applied(self.model):
            return self._resume(*layer, copies=len(ablations))

    def _resume(self, stack: str, layer: int, copies: int) -> Tensor:
        """The states from the input of a layer upwards, for copies of the batch."""
        model: Any = self.model
        x = self.recorded[f"{stack}.{layer}.{LAYER_INPUT}"].repeat(copies, 1, 1)
        real = padding(self.lengths.repeat(copies), self.tokens.shape[1])
        target = None if self.target is None else self.target.repeat(copies, 1)
        states: Tensor
        if stack == "encoder":
            mask = model.attention_mask(real, Mask(causal=model.config.encoder_causal))
            states = model.encoder(x, mask, first=layer)
            if target is not None:
                states = model.states(target, EncoderOutput(states, real))
        elif target is None:
            states = model.decoder(x, model.decoder_mask(self.tokens.repeat(copies, 1)), first=layer)
        else:
            memory = self.recorded["encoder.output"].repeat(copies, 1, 1)
            states = model.decoder(x, model.decoder_mask(target), memory=memory, memory_mask=real, first=layer)
        return states


def _edit_rows(entries: Sequence[tuple[slice, Edit]]) -> Edit:
    """Combine edits into one that applies each to its rows of the batch."""

    def edit(value: Tensor, site: TapSite) -> Tensor:
        edited = value.clone()
        for rows, function in entries:
            changed = function(edited[rows], site)
            if changed is not None:
                edited[rows] = changed
        return edited

    return edit

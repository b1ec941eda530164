"""Record what a `Look` shows: one forward pass over several texts gives the attention of every layer and head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from heedful.data.batching import map_length_buckets
from heedful.inspection.attention_alignment import Alignment, extract_links, word_weights
from heedful.inspection.logit_lens import logit_lens
from heedful.inspection.look_result import AttentionKind, AttentionMap, HeadAlignment, Look, ScoredOutput, Weights
from heedful.inspection.predictions import LabelSource, rank_outputs
from heedful.inspection.text_pass import TextPass, run_passes
from heedful.layers.taps import Recording, record, tap_names
from heedful.text.token_rows import TokenRow
from heedful.text.word_tokens import TokenizedWords

BATCH_TOKENS = 1024
"""Tokens in a batch, padding included; small, because attention weights take memory."""


@runtime_checkable
class LookSource(LabelSource, Protocol):
    """The interface of a trained model that recording needs."""

    @property
    def model(self) -> Any: ...

    @property
    def task(self) -> str: ...

    @property
    def short_name(self) -> str: ...

    def word_alignment(self, text_pass: TextPass, attention: dict[str, AttentionMap]) -> HeadAlignment | None: ...


def look_at(
    source: LookSource, passes: Sequence[TextPass], *, top: int, lens: bool, interventions: Sequence[str] = ()
) -> list[Look]:
    """Record looks of passes, in order; those of similar length share a batch, which does not change values.

    `interventions`: descriptions of the active edits, for the result.
    """
    lengths = [[len(text_pass.inputs) for text_pass in passes], [len(text_pass.output_row) for text_pass in passes]]
    look = partial(_look_at_batch, source, top=top, lens=lens, interventions=tuple(interventions))
    return map_length_buckets(lambda indices: look([passes[i] for i in indices]), lengths, BATCH_TOKENS)


@torch.inference_mode()
def _look_at_batch(
    source: LookSource, passes: Sequence[TextPass], *, top: int, lens: bool, interventions: tuple[str, ...]
) -> list[Look]:
    taps = [name for name in tap_names(source.model) if name.endswith(".weights")]
    with record(source.model, *taps) as recorded:
        logits = run_passes(source.model, passes)
    tables = _weight_tables(recorded)
    lenses = logit_lens(source, source.model, passes, top) if lens else [None] * len(passes)
    looks = []
    for row, (text_pass, scores, layers) in enumerate(zip(passes, logits, lenses, strict=True)):
        ranked = rank_outputs(source, text_pass, scores, top)
        outputs = tuple(
            ScoredOutput(output.position, output.label, output.text, output.words, scored.probability, scored.top)
            for output, scored in zip(text_pass.outputs, ranked, strict=True)
        )
        maps = {name: attention_map(name, table[row], text_pass) for name, table in tables.items()}
        alignment = source.word_alignment(text_pass, maps)
        looks.append(
            Look(
                source.short_name, source.task, text_pass.inputs, text_pass.target, outputs, maps, alignment, layers,
                interventions,
            )
        )  # fmt: skip
    return looks


def _weight_tables(recorded: Recording) -> dict[str, Weights]:
    """The recorded weights by part, as arrays: batch × heads × rows × columns."""
    return {name.removesuffix(".weights"): weights.float().cpu().numpy() for name, weights in recorded.items()}


def attention_map(name: str, weights: Weights, text_pass: TextPass) -> AttentionMap:
    """The attention of one text of a batch, without padding."""
    kind = _kind(name)
    rows = "inputs" if kind == "encoder" or text_pass.target is None else "target"
    columns = "target" if kind == "self" and text_pass.target is not None else "inputs"
    sizes = {"inputs": len(text_pass.inputs), "target": len(text_pass.output_row)}
    layer = next((int(part) for part in name.split(".") if part.isdigit()), None)
    table = np.ascontiguousarray(weights[:, : sizes[rows], : sizes[columns]])
    return AttentionMap(name, layer, kind, rows, columns, table)  # type: ignore[arg-type]


def _kind(name: str) -> AttentionKind:
    if name.rpartition(".")[2] == "cross":
        return "cross"
    return "encoder" if name.startswith("encoder") else "self"


def align_words(alignment: Alignment, text_pass: TextPass, attention: dict[str, AttentionMap]) -> HeadAlignment:
    """Align the words of a pass by the recorded weights of one head."""
    assert text_pass.target is not None
    part = alignment.tap.removesuffix(".weights")
    heads = attention[part].weights
    rows = heads.mean(0) if alignment.head is None else heads[alignment.head]
    source = _without_special(text_pass.inputs, slice(None, -1))
    weights = word_weights(rows, source, _without_special(text_pass.target, slice(1, None)), alignment.row)
    return HeadAlignment(part, alignment.head, str(alignment), weights, extract_links(weights))


def _without_special(row: TokenRow, tokens: slice) -> TokenizedWords:
    return TokenizedWords(row.words, row.ids[tokens], row.word_ranges[tokens])

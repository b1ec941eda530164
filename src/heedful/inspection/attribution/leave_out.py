"""Occlusion and leave-one-out of the aligned head: how much an output's log-probability falls without one word."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from heedful.data.batching import map_length_buckets
from heedful.inspection.attribution.explained_output import (
    BATCH_TOKENS,
    ExplainedOutput,
    ExplainSource,
    Scores,
    log_probabilities,
    output_log_probabilities,
)
from heedful.inspection.attribution.perturbation import hide_words
from heedful.inspection.text_pass import run_passes
from heedful.layers.taps import TapSite, edit


def occlusion(source: ExplainSource, outputs: Sequence[ExplainedOutput]) -> list[Scores]:
    """a_j = log p(y | x) − log p(y | x without word j)        Zeiler & Fergus 2014, Li 2016"""
    passes = [
        hide_words(source, output, hidden)
        for output in outputs
        for hidden in ((), *((index,) for index in range(len(output.words))))
    ]
    return _drops(output_log_probabilities(source, passes), outputs)


def leave_one_out(source: ExplainSource, outputs: Sequence[ExplainedOutput]) -> list[Scores]:
    """a_j = log p(y | x) − log p(y | x, the aligned head may not read word j)

    The rest of the model reads the word as before: this measures the contribution of the head alone.
    """
    alignment = source.aligned_head
    assert alignment is not None
    rows = [(output, hidden) for output in outputs for hidden in ((), *output.tokens_of_words)]

    @torch.inference_mode()
    def run(indices: list[int]) -> list[float]:
        batch = [rows[index] for index in indices]
        text_passes = [output.text_pass for output, _ in batch]

        def hide(allowed: Tensor, site: TapSite) -> Tensor:
            visible = torch.ones(len(batch), allowed.shape[-1], dtype=torch.bool)
            for row, (_, tokens) in zip(visible, batch, strict=True):
                row[list(tokens)] = False
            changed = allowed & visible[:, None, None].to(allowed.device)
            if alignment.head is None:
                return changed
            heads = torch.arange(allowed.shape[1], device=allowed.device)[:, None, None]
            return torch.where(heads == alignment.head, changed, allowed)

        with edit(source.model, {alignment.tap.replace(".weights", ".mask"): hide}):
            logits = run_passes(source.model, text_passes)
        return [float(log_probabilities(source, *pair).sum()) for pair in zip(text_passes, logits, strict=True)]

    passes = [output.text_pass for output, _ in rows]
    sizes = [[len(text_pass.inputs) for text_pass in passes], [len(text_pass.output_row) for text_pass in passes]]
    return _drops(np.array(map_length_buckets(run, sizes, BATCH_TOKENS)), outputs)


def _drops(scores: Scores, outputs: Sequence[ExplainedOutput]) -> list[Scores]:
    """For each output, the score of the whole input minus the scores without one word."""
    ends = np.cumsum([1 + len(output.words) for output in outputs])[:-1]
    return [part[0] - part[1:] for part in np.split(scores, ends)]

"""Attention read as attribution: the aligned head, the mean of all heads, and rollout through the layers.

Weights are summed over the tokens of an input word and averaged over those of the output. They show where a model
attends; `faithfulness` measures whether that explains the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from heedful.inspection.attribution.explained_output import ExplainedOutput, ExplainSource, Scores
from heedful.inspection.look_recording import look_at
from heedful.inspection.look_result import Look
from heedful.inspection.text_pass import TextPass


def aligned_head(source: ExplainSource, outputs: Sequence[ExplainedOutput]) -> list[Scores]:
    """Attention of the head of a translator that aligns words best, as measured        Garg 2019"""

    def weights(look: Look, output: ExplainedOutput) -> Scores:
        assert look.alignment is not None
        assert output.word is not None
        return look.alignment.weights[output.word, list(output.words)].astype(np.float64)

    return _read_attention(source, outputs, weights)


def mean_attention(source: ExplainSource, outputs: Sequence[ExplainedOutput]) -> list[Scores]:
    """The mean of all heads of all layers: cross-attention, or self-attention in a model without it."""

    def weights(look: Look, output: ExplainedOutput) -> Scores:
        kinds = ("self", "encoder") if look.target is None else ("cross",)
        tables = [attention.weights.mean(0) for attention in look.attention.values() if attention.kind in kinds]
        return _output_row(source, np.mean(tables, axis=0, dtype=np.float64), output)

    return _read_attention(source, outputs, weights)


def rollout(source: ExplainSource, outputs: Sequence[ExplainedOutput]) -> list[Scores]:
    """R_l = ½ (A_l + I) R_{l−1}, R_0 = I, with A_l the mean of a layer's heads        Abnar & Zuidema 2020, eq. 1

    ½ I stands for the skip-connection. In an encoder-decoder the rollout continues in the decoder, whose tokens first
    have no source attention: each cross-attention adds ½ A_l R of the encoder (compare Chefer 2021).
    """

    def weights(look: Look, output: ExplainedOutput) -> Scores:
        return _output_row(source, _rolled_out(look, source.model.config.skip), output)

    return _read_attention(source, outputs, weights)


def _rolled_out(look: Look, has_skip: bool) -> Scores:
    """The share of each token's last state due to each input token: target (or input) tokens × input tokens."""
    share = 0.5 if has_skip else 0.0
    means = {name: attention.weights.mean(0).astype(np.float64) for name, attention in look.attention.items()}
    kinds = {name: attention.kind for name, attention in look.attention.items()}
    identity = np.eye(len(look.inputs))
    rolled = identity
    for name, table in means.items():
        if kinds[name] == "encoder" or look.target is None:
            rolled = share * rolled + (1 - share) * table @ rolled
    if look.target is None:
        return rolled
    decoded = np.zeros((len(look.target), len(look.inputs)))
    for name, table in means.items():
        if kinds[name] != "encoder":
            decoded = share * decoded + (1 - share) * table @ (rolled if kinds[name] == "cross" else decoded)
    return decoded


def _read_attention(
    source: ExplainSource, outputs: Sequence[ExplainedOutput], weights: Callable[[Look, ExplainedOutput], Scores]
) -> list[Scores]:
    """Apply a function to each output and the attention of its pass; a pass of several outputs is run once."""
    passes: dict[tuple[tuple[int, ...], tuple[int, ...]], TextPass] = {}
    keys = []
    for output in outputs:
        text_pass = output.text_pass
        keys.append((text_pass.inputs.ids, text_pass.target.ids if text_pass.target else ()))
        passes.setdefault(keys[-1], text_pass)
    looks = dict(zip(passes, look_at(source, list(passes.values()), top=1, lens=False), strict=True))
    return [weights(looks[key], output) for key, output in zip(keys, outputs, strict=True)]


def _output_row(source: ExplainSource, table: Scores, output: ExplainedOutput) -> Scores:
    """The attention of an output on its words: the mean of its tokens' rows, summed over the tokens of each word."""
    rows = output.rows_of_attention
    if output.text_pass.head == "sequence_class":
        pooling = source.model.config.pooling
        rows = {"first": [0], "last": [len(table) - 1], "mean": list(range(len(table)))}[pooling]
    scores: Scores = table[rows].mean(0) @ output.word_shares
    return scores

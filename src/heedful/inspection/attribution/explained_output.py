"""Outputs to explain: what a model predicted, and the words of the input that the prediction may depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from heedful.data.batching import map_length_buckets
from heedful.errors import UsageError
from heedful.inspection.attention_alignment import Alignment
from heedful.inspection.look_recording import LookSource
from heedful.inspection.text_pass import Output, TextPass, run_passes
from heedful.text.token_rows import TokenRow, span_text

Scores = npt.NDArray[np.float64]
"""One number for each word of an output's input."""
BATCH_TOKENS = 2048
"""Tokens in a batch, padding included."""
ONE_OUTPUT_HEADS = ("sequence_class", "answer_span")
"""Heads whose logits are one output, or the two ends of one."""
LOWEST = 1e-30
"""Lower bound of probabilities, so that logarithms are finite."""


@runtime_checkable
class ExplainSource(LookSource, Protocol):
    """The interface of a trained model that attribution needs."""

    @property
    def aligned_head(self) -> Alignment | None:
        """The cross-attention head that aligns words, of a translator."""

    @property
    def blank_token(self) -> int:
        """The token whose vector replaces every word in the baseline of integrated gradients."""

    @property
    def occluding_token(self) -> int | None:
        """The token that replaces a hidden word; None: the word is removed."""


@dataclass(frozen=True)
class ExplainedOutput:
    """An output whose log-probability, Σ log p over its tokens, is attributed to words of the input."""

    text_pass: TextPass
    """The pass that predicts this output, cut off after the last token it depends on; `outputs` are its tokens."""
    text: str
    word: int | None
    """The number of the word in the output text, or of the mask; None for a class or an answer."""
    words: tuple[int, ...]
    """The input words that the output may depend on."""

    @cached_property
    def tokens_of_words(self) -> tuple[tuple[int, ...], ...]:
        """For each of these words, the positions of its tokens."""
        return tuple(tuple(self.text_pass.inputs.tokens_of_word(word)) for word in self.words)

    @cached_property
    def word_shares(self) -> Scores:
        """The share of each input token that belongs to each of these words: tokens × words."""
        ranges = self.text_pass.inputs.word_ranges
        return np.array([[(word in span) / max(1, len(span)) for word in self.words] for span in ranges], np.float64)

    @property
    def rows_of_attention(self) -> list[int]:
        """The tokens whose attention explains the output: those whose states predict it; token 0 for a class."""
        if self.text_pass.head == "answer_span":
            return [output.label for output in self.text_pass.outputs]
        return [output.position for output in self.text_pass.outputs]


def explained_outputs(text_pass: TextPass, word: int | None = None) -> list[ExplainedOutput]:
    """The outputs of a pass, or the one with this number: a word of the output text, or a mask, counted from 0."""
    if text_pass.head is None:
        raise UsageError("this model makes vectors, not predictions: there is no output to explain")
    outputs: list[ExplainedOutput] = []
    if text_pass.head in ONE_OUTPUT_HEADS and text_pass.outputs:
        if word is not None:
            raise UsageError(f"the output is one, '{_answer(text_pass):.40}': leave the number of a word out")
        outputs = [_depending_on(text_pass, text_pass.outputs, _answer(text_pass), None)]
    elif text_pass.head == "masked_token":
        visible = replace(text_pass, inputs=_without_masks(text_pass))
        each_mask = enumerate(text_pass.outputs)
        outputs = [_depending_on(visible, (mask,), mask.text.strip(), number) for number, mask in each_mask]
    else:
        numbers = sorted({number for output in text_pass.outputs for number in output.words})
        outputs = [_output_word(text_pass, number) for number in numbers]
    return [output for output in _chosen(text_pass, outputs, word) if output.words]


def _chosen(text_pass: TextPass, outputs: list[ExplainedOutput], word: int | None) -> list[ExplainedOutput]:
    """The output with this number, or all; UsageError if none of them depends on a word."""
    if not outputs:
        raise UsageError("the answer has no words: there is nothing to explain")
    chosen = [output for output in outputs if word is None or output.word == word]
    if not chosen:
        numbers = [output.word for output in outputs]
        noun = "mask" if text_pass.head == "masked_token" else "word"
        raise UsageError(f"the output has no {noun} {word}: its {noun}s are {numbers[0]} to {numbers[-1]}")
    if not any(output.words for output in chosen):
        raise UsageError(f"there is no word before '{chosen[0].text}' to explain it by")
    return chosen


def _output_word(text_pass: TextPass, number: int) -> ExplainedOutput:
    outputs = tuple(text_pass.outputs_of_word(number))
    text = text_pass.output_row.words[number]
    if text_pass.target is not None:
        return _depending_on(text_pass, outputs, text, number)
    cut = replace(text_pass, inputs=keep_tokens(text_pass.inputs, range(outputs[-1].position + 1)))
    read = range(outputs[0].position + 1)
    before = {word for token in read for word in text_pass.inputs.word_ranges[token] if word < number}
    return ExplainedOutput(replace(cut, outputs=outputs), text, number, tuple(sorted(before)))


def _depending_on(text_pass: TextPass, outputs: tuple[Output, ...], text: str, number: int | None) -> ExplainedOutput:
    """An output that depends on every word of the input that the model reads as tokens."""
    words = sorted({word for indices in text_pass.inputs.word_ranges for word in indices})
    return ExplainedOutput(replace(text_pass, outputs=outputs), text, number, tuple(words))


def _without_masks(text_pass: TextPass) -> TokenRow:
    """The input row with mask tokens assigned to no word."""
    row, masks = text_pass.inputs, {output.position for output in text_pass.outputs}
    ranges = tuple(range(0) if token in masks else words for token, words in enumerate(row.word_ranges))
    return replace(row, word_ranges=ranges)


def _answer(text_pass: TextPass) -> str:
    if text_pass.head != "answer_span":
        return ", ".join(output.text for output in text_pass.outputs)
    return span_text(text_pass.inputs, [output.label for output in text_pass.outputs])


def keep_tokens(row: TokenRow, kept: Sequence[int]) -> TokenRow:
    """The row reduced to these tokens."""
    fields = (row.ids, row.pieces, row.spans, row.word_ranges)
    ids, pieces, spans, ranges = (tuple(field[token] for token in kept) for field in fields)
    return replace(row, ids=ids, pieces=pieces, spans=spans, word_ranges=ranges)  # type: ignore[arg-type]


def log_probabilities(source: ExplainSource, text_pass: TextPass, logits: Any) -> Any:
    """The log-probability of each output of a pass, from its logits: several labels of a text share one row."""
    probabilities = source.output_probabilities(logits.float())
    labels = probabilities.new_tensor([output.label for output in text_pass.outputs]).long()
    probabilities = probabilities.expand(len(labels), -1)
    return probabilities.gather(1, labels[:, None])[:, 0].clamp(min=LOWEST).log()


@torch.inference_mode()
def output_log_probabilities(source: ExplainSource, passes: Sequence[TextPass]) -> Scores:
    """Σ log p over the outputs of each pass. Passes that read the same tokens are run once."""
    indices: dict[tuple[Any, ...], list[int]] = {}
    for i, one_pass in enumerate(passes):
        whole = one_pass.outputs if one_pass.head in ONE_OUTPUT_HEADS else ()
        key = (one_pass.inputs.ids, one_pass.target.ids if one_pass.target else (), whole)
        indices.setdefault(key, []).append(i)
    groups = list(indices.values())
    merged = [
        replace(passes[group[0]], outputs=tuple(dict.fromkeys(output for i in group for output in passes[i].outputs)))
        for group in groups
    ]

    def run(rows: list[int]) -> list[dict[Output, float]]:
        batch = [merged[row] for row in rows]
        logits = run_passes(source.model, batch)
        values = [log_probabilities(source, *pair).tolist() for pair in zip(batch, logits, strict=True)]
        return [dict(zip(text_pass.outputs, row, strict=True)) for text_pass, row in zip(batch, values, strict=True)]

    sizes = [[len(text_pass.inputs) for text_pass in merged], [len(text_pass.output_row) for text_pass in merged]]
    scores = np.zeros(len(passes))
    for group, values in zip(groups, map_length_buckets(run, sizes, BATCH_TOKENS), strict=True):
        scores[group] = [sum(values[output] for output in passes[index].outputs) for index in group]
    return scores

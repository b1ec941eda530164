"""One text as a model reads it in one forward pass: the input of all inspection tools.

A `TextPass` holds the tokens that go in and the outputs to explain; `run_passes` runs several at once, padded, with or
without gradients. It works for every family, so that attention maps, logit lens, attribution and census are written
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from heedful.cancellation import raise_if_cancelled
from heedful.data.collate import pad_sequences
from heedful.objectives.answer_span_loss import span_head_logits, span_states
from heedful.objectives.masked_lm_loss import states_at
from heedful.shapes import Float
from heedful.text.special_tokens import END
from heedful.text.token_rows import TokenRow
from heedful.text.tokenizer import Tokenizer

Head = Literal["next_token", "masked_token", "sequence_class", "answer_span"]


@dataclass(frozen=True)
class Output:
    """One prediction of a pass, with its own row of logits."""

    position: int
    """The token whose state predicts this output; 0 for a class."""
    label: int
    """The token, class or, for an answer span, input token that is predicted."""
    text: str
    words: tuple[int, ...] = ()
    """The words of the output text that this output belongs to; none for END, classes and spans."""


@dataclass(frozen=True)
class TextPass:
    """One text as a model reads it in one forward pass."""

    head: Head | None
    """The head whose logits are the outputs; None for an embedding."""
    inputs: TokenRow
    """Tokens that the model reads: the encoder's, or the only ones."""
    outputs: tuple[Output, ...]
    target: TokenRow | None = None
    """Encoder-decoders: START and the target's tokens, which the decoder reads."""
    segments: tuple[int, ...] = ()
    """For each input token the number of its text, where a model reads two."""
    passage_start: int = 0
    """Question answering: the first token of the passage."""

    @property
    def output_row(self) -> TokenRow:
        """The row that holds the output's words."""
        return self.inputs if self.target is None else self.target

    def outputs_of_word(self, word: int) -> list[Output]:
        return [output for output in self.outputs if word in output.words]


def seq2seq_pass(inputs: TokenRow, target: TokenRow, tokenizer: Tokenizer) -> TextPass:
    """The pass of an encoder-decoder: the row of START and the target predicts the target and END."""
    predicted = [*target.ids[1:], END]
    words = [tuple(indices) for indices in target.word_ranges[1:]] + [()]
    pieces = tokenizer.pieces(predicted)
    outputs = tuple(Output(*fields) for fields in zip(range(len(predicted)), predicted, pieces, words, strict=True))
    return TextPass("next_token", inputs, outputs, target)


def next_token_pass(inputs: TokenRow, prompt: int) -> TextPass:
    """The pass of a language model over a prompt of `prompt` tokens and its continuation, which is the output."""
    outputs = tuple(
        Output(position - 1, inputs.ids[position], inputs.pieces[position], tuple(inputs.word_ranges[position]))
        for position in range(max(1, prompt), len(inputs))
    )
    return TextPass("next_token", inputs, outputs)


def run_passes(model: Any, passes: Sequence[TextPass]) -> list[Float[Tensor, "outputs labels"]]:
    """One row of logits for each output of each pass; the passes share a batch and must be of one kind.

    An answer span has two outputs, start and end, with logits over the input's tokens. Without a head: the hidden
    states of all tokens.
    """
    return pass_logits(model, pass_states(model, passes), passes)


def pass_states(model: Any, passes: Sequence[TextPass]) -> Float[Tensor, "batch tokens width"]:
    """The states that the head reads: of the target's tokens where there is a target, else of the input's."""
    raise_if_cancelled()
    tokens, lengths = pad_sequences([text_pass.inputs.ids for text_pass in passes], device=model.device)
    states: Tensor
    if passes[0].target is not None:
        target, _ = pad_sequences([_require(text_pass.target).ids for text_pass in passes], device=model.device)
        states = model.teacher_forced_states(tokens, target, lengths)
    elif passes[0].head == "answer_span":
        states = span_states(model, tokens, lengths, _passage_starts(passes, tokens))
    elif model.config.family == "word_vectors":
        states = model(tokens)
    elif passes[0].head == "next_token":
        states = model.states(tokens)
    elif passes[0].segments and model.config.segments > 1:
        segments, _ = pad_sequences([text_pass.segments for text_pass in passes], device=model.device)
        states = model.states(tokens, lengths, segments=segments)
    else:
        states = model.states(tokens, lengths)
    return states


def pass_logits(
    model: Any, states: Float[Tensor, "batch tokens width"], passes: Sequence[TextPass]
) -> list[Float[Tensor, "outputs labels"]]:
    """The head's logits for each output of each pass, from these states."""
    head = passes[0].head
    if head is None:
        return [row[: len(text_pass.inputs)] for row, text_pass in zip(states, passes, strict=True)]
    lengths = torch.tensor([len(text_pass.inputs) for text_pass in passes], device=states.device)
    if head == "answer_span":
        spans = torch.stack(span_head_logits(model, states, lengths, _passage_starts(passes, lengths)), 1)
        return [row[:, : len(text_pass.inputs)] for row, text_pass in zip(spans, passes, strict=True)]
    if head == "sequence_class":
        return list(model.apply_head(head, states, lengths)[:, None])
    if head == "masked_token":
        masks = [[output.position for output in text_pass.outputs] for text_pass in passes]
        logits = model.apply_head(head, states_at(states, pad_sequences(masks, device=states.device)[0]))
        return [row[: len(text_pass.outputs)] for row, text_pass in zip(logits, passes, strict=True)]
    if not model.has_listener("logits"):  # which would see all tokens in order
        rows = model.apply_head(head, output_states(states, passes)[None])[0]
        return list(rows.split([len(text_pass.outputs) for text_pass in passes]))
    logits = model.apply_head(head, states)
    return [row[[output.position for output in text.outputs]] for row, text in zip(logits, passes, strict=True)]


def output_states(
    states: Float[Tensor, "batch tokens width"], passes: Sequence[TextPass]
) -> Float[Tensor, "outputs width"]:
    """The states that predict the outputs of all passes, concatenated."""
    return torch.cat(
        [row[[output.position for output in text_pass.outputs]] for row, text_pass in zip(states, passes, strict=True)]
    )


def _passage_starts(passes: Sequence[TextPass], like: Tensor) -> Tensor:
    return like.new_tensor([text_pass.passage_start for text_pass in passes])


def _require(row: TokenRow | None) -> TokenRow:
    assert row is not None
    return row

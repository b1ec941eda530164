"""A model with random texts to compare its outputs on, shared by all checks of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from heedful.models.encoder import Encoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.recurrent import RecurrentEncoderDecoder
from heedful.text.special_tokens import PAD

TOKENS, ROWS, PADDING = 24, 3, 4
"""Length and number of the random texts, and the padding of the longest."""
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Tolerance for rounding, relative to the size of the outputs."""
SIZED = 4_000_000
"""Maximum number of outputs whose size is measured."""
POOLED = ("pooled", "sequence_class", "next_sentence")
Status = Literal["passed", "failed", "not applicable"]


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    status: Status
    detail: str
    difference: float | None = None
    """The largest difference between outputs, relative to their size."""


def relative_difference(first: Tensor, second: Tensor) -> Tensor:
    """|first − second|, relative to the 75th percentile of output sizes, or to the output itself if that is larger.

    Not relative to the maximum: in some imported models unused tokens have logits of −60,000, which would hide a leak.
    """
    sizes = first.abs().flatten()[:SIZED]
    usual = sizes.kthvalue(math.ceil(0.75 * len(sizes))).values.maximum(1e-6 * sizes.max()).clamp(min=1e-30)
    return (first - second).abs() / first.abs().maximum(usual)


class ModelProbe:
    """A model with random texts to compare its outputs on."""

    def __init__(self, model: Any, seed: int) -> None:
        self.model, self.generator = model, torch.Generator().manual_seed(seed)
        self.config = model.config
        self.is_pair = isinstance(model, EncoderDecoder | RecurrentEncoderDecoder)
        self.is_encoder = isinstance(model, Encoder)
        self.is_transformer = hasattr(self.config, "positions")
        self.decoder_causal = bool(getattr(self.config, "decoder_causal", True))
        self.encoder_causal = bool(getattr(self.config, "encoder_causal", False))
        self.tolerance = TOLERANCE[next(model.parameters()).dtype]
        room = self.config.max_length if getattr(self.config, "has_position_table", False) else TOKENS + PADDING
        self.padded_to = min(TOKENS + PADDING, room)
        self.tokens = max(min(3, room), self.padded_to - PADDING)
        self.source = self.draw(self.config.vocabulary)
        self.target = self.draw(getattr(self.config, "target_vocabulary", None) or self.config.vocabulary)

    def draw(self, vocabulary: int) -> Tensor:
        """Random tokens, excluding special tokens if the vocabulary is large enough."""
        first = min(6, max(0, vocabulary - 4))
        return torch.randint(first, vocabulary, (ROWS, self.tokens), generator=self.generator).to(self.model.device)

    @property
    def text(self) -> Tensor:
        """The texts for the decoder."""
        return self.target if self.is_pair else self.source

    @property
    def encodes_order(self) -> bool:
        """Whether token order matters according to the configuration."""
        if not self.is_transformer:
            return True
        positions = self.config.positions != "none" or self.config.has_position_table
        causal = self.encoder_causal or (self.config.family == "decoder" and self.decoder_causal)
        return bool(positions or self.config.score == "distance" or causal or self.config.window is not None)

    def logits(self, tokens: Tensor, source: Tensor | None = None) -> Tensor:
        """Logits after every token; without `source`, all pairs share the first source."""
        if not self.is_pair:
            return self.model(tokens)  # type: ignore[no-any-return]
        return self.model(self.source[:1].expand(len(tokens), -1) if source is None else source, tokens)  # type: ignore[no-any-return]

    def encoder_states(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The states of an encoder, or of the encoder of an encoder-decoder."""
        result = self.model.encode(tokens, lengths).states if self.is_pair else self.model.states(tokens, lengths)
        assert isinstance(result, Tensor)
        return result

    def outputs(self, source: Tensor, row: int = 0, lengths: Tensor | None = None) -> Tensor:
        """The outputs of texts: states, logits, or logits of a fixed target. `row`: the first text's number."""
        if self.is_pair:
            result: Tensor = self.model(source, self.target[row : row + len(source)], lengths)
        elif self.is_encoder:
            result = self.model.states(source, lengths)
        else:
            result = self.model(source)
        return result

    def padding_difference(self) -> float:
        """The largest change of outputs when texts are padded to one length: with PAD, and with other tokens.

        The lengths hide padding, so that its content does not matter; a decoder without a causal mask finds padding by
        PAD only.
        """
        lengths = torch.tensor([self.tokens, max(1, self.tokens - 3), max(1, self.tokens // 2)])[:ROWS]
        lengths = lengths.to(self.source.device)
        fillers = [PAD, None] if self.decoder_causal or self.is_pair else [PAD]
        errors = [self.padding_of_sources(lengths, filler) for filler in fillers]
        if not self.decoder_causal:
            errors.append(self.padding_of_targets(lengths))
        return max(errors)

    def padded(self, texts: Tensor, lengths: Tensor, filler: int | None) -> Tensor:
        """The texts cut to their lengths, with padding; `filler` None: the text's own tokens, backwards."""
        longer = torch.cat([texts, texts.flip(1)], 1)[:, : self.padded_to]
        real = torch.arange(longer.shape[1], device=longer.device) < lengths[:, None]
        return longer if filler is None else torch.where(real, longer, filler)

    def padding_of_sources(self, lengths: Tensor, filler: int | None) -> float:
        """The largest change of outputs when sources, or the texts of other families, are padded with a token."""
        padded = self.padded(self.source, lengths, filler)
        together = self.outputs(padded, lengths=lengths)
        pooled = [self.pooled(padded, lengths, task) for task in self.pooled_tasks]
        written = self.model.extend(self.target, self.model.start(padded, lengths)) if self.is_pair else None
        errors = []
        for row, length in enumerate(lengths.tolist()):
            alone, row_length = self.source[row : row + 1, :length], lengths[row : row + 1]
            expected = self.outputs(alone, row)
            errors.append(self.difference(expected, together[row : row + 1, : expected.shape[1]]))
            if written is not None and self.decoder_causal:
                errors.append(self.difference(expected, written[row : row + 1]))
            for task, states in zip(self.pooled_tasks, pooled, strict=True):
                errors.append(self.difference(self.pooled(alone, row_length, task), states[row : row + 1]))
        return max(errors)

    def padding_of_targets(self, lengths: Tensor) -> float:
        """A decoder that sees later tokens must not see padding."""
        together = self.logits(self.padded(self.text, lengths, PAD), self.source)
        errors = []
        for row, length in enumerate(lengths.tolist()):
            expected = self.logits(self.text[row : row + 1, :length], self.source[row : row + 1])
            errors.append(self.difference(expected, together[row : row + 1, :length]))
        return max(errors)

    @property
    def pooled_tasks(self) -> list[str]:
        """The heads that read a whole text."""
        return [] if self.is_pair else [task for task in getattr(self.config, "tasks", ()) if task in POOLED]

    def pooled(self, tokens: Tensor, lengths: Tensor, task: str) -> Tensor:
        """The output of such a head."""
        result = self.model.apply_head(task, self.model.states(tokens, lengths), lengths)
        assert isinstance(result, Tensor)
        return result

    @staticmethod
    def difference(first: Tensor, second: Tensor) -> float:
        """The largest relative difference."""
        return float(relative_difference(first, second).max())

    def result(self, name: str, *, passed: bool, detail: str, difference: float | None) -> Check:
        return Check(name, "passed" if passed else "failed", detail, difference)

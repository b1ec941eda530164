"""Recurrent models: a language model, and an encoder-decoder with a fixed context or attention (F4–F6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.errors import UsageError
from heedful.layers.embedding import embedding_lookup
from heedful.layers.masks import Mask, padding
from heedful.layers.taps import Tapped, at_last_of
from heedful.models.heads import NextTokenHead, OutputProjection
from heedful.models.model_config import RecurrentConfig
from heedful.models.recurrent_attention import RecurrentAttention
from heedful.models.recurrent_network import Recurrence
from heedful.models.source_context import SourceContext
from heedful.models.token_inputs import check_same_batch, check_tokens
from heedful.models.transformer import initialize
from heedful.models.window_network import WindowNetwork
from heedful.shapes import Float, Int


@dataclass
class RecurrentState:
    """Hidden state of a recurrent decoder: one vector per layer, and the encoded source if there is one."""

    lengths: Int[Tensor, " batch"]
    hidden: tuple[Tensor, ...]
    """h, and for an LSTM also its cell c: each layers × batch × width."""
    memory: Float[Tensor, "batch keys width"] | None = None
    memory_mask: Mask | None = None
    context: Float[Tensor, "batch width"] | None = None
    texts: Int[Tensor, " batch"] | None = None
    """For each row the index of its text in the request, for taps; None while nothing listens."""

    def reorder(self, rows: Int[Tensor, " chosen"], rows_per_source: int = 1) -> None:
        self.lengths = self.lengths[rows]
        self.texts = None if self.texts is None else self.texts[rows]
        self.hidden = tuple(part[:, rows] for part in self.hidden)
        self.memory = None if self.memory is None else self.memory[rows]
        self.context = None if self.context is None else self.context[rows]
        if self.memory_mask is not None and self.memory_mask.allowed is not None:
            self.memory_mask = Mask(allowed=self.memory_mask.allowed[rows])


def make_network(config: RecurrentConfig, *, bidirectional: bool = False) -> Recurrence | WindowNetwork:
    """The recurrent network of a configuration, or the feed-forward network over a window in its place (F7)."""
    if config.cell != "window":
        return Recurrence(config, bidirectional=bidirectional)
    return WindowNetwork(
        config.width,
        config.layers,
        window=config.window,
        inputs=config.window_inputs,
        dropout=config.dropout,
        bidirectional=bidirectional,
    )


class Recurrent(Tapped):
    """Base of both recurrent families: token tables, decoder cell and output layer."""

    states: Callable[..., Tensor]

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Embedding(config.vocabulary, config.width)
        self.target_table: nn.Embedding | None = None
        self.dropout = nn.Dropout(config.dropout)
        self.decoder = make_network(config)
        vocabulary = config.target_vocabulary or config.vocabulary
        self.next_token = NextTokenHead(config.width, vocabulary, tied=config.tie_output)

    @property
    def device(self) -> torch.device:
        return self.table.weight.device

    @property
    def decoder_table(self) -> nn.Embedding:
        """Table of the tokens that the decoder reads and, when tied, predicts."""
        return self.table if self.target_table is None else self.target_table

    def apply_head(self, task: str, states: Tensor) -> Tensor:
        return self.tap("logits", nn.functional.linear(*self.output_projection(task, states)))

    def last_logits(self, states: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch 1 vocabulary"]:
        """The logits after the last of these tokens; taps see them at its position."""
        with at_last_of(states.shape[1]):
            return self.apply_head("next_token", states[:, -1:])

    def output_projection(self, task: str, states: Tensor) -> OutputProjection:
        if task != "next_token":
            raise UsageError(f"this model has no '{task}' head; it has next_token")
        return self.next_token.output_projection(states, self.decoder_table.weight)

    def extend(
        self,
        tokens: Int[Tensor, "batch tokens"],
        state: RecurrentState,
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        last: bool = False,
    ) -> Float[Tensor, "batch positions vocabulary"]:
        """Advance the hidden state by these tokens; return the logits after each of them, or only after the last."""
        states = self.states(tokens, lengths, state=state)
        state.lengths = state.lengths + (tokens.shape[1] if lengths is None else lengths)
        return self.last_logits(states) if last else self.apply_head("next_token", states)


class RecurrentDecoder(Recurrent):
    """A recurrent language model        Mikolov 2010 · F4"""

    points = ("embedding.tokens", "logits")

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        initialize(self)

    def forward(self, tokens: Int[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens vocabulary"]:
        return self.apply_head("next_token", self.states(tokens))

    def states(
        self,
        tokens: Int[Tensor, "batch tokens"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        document_ids: Int[Tensor, "batch tokens"] | None = None,
        state: RecurrentState | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        """States at every token. The hidden state runs on into the next packed document; only END separates them."""
        check_tokens(self.table, lengths, tokens=tokens)
        hidden = None if state is None else state.hidden
        x = self.tap("embedding.tokens", embedding_lookup(self.table, tokens))
        states, hidden = self.decoder(self.dropout(x), hidden, lengths)
        if state is not None:
            state.hidden = hidden
        return self.dropout(states)

    def start(self, batch: int, *, capacity: int = 0) -> RecurrentState:
        """A zero hidden state. `capacity` is for KV caches; a hidden state never grows."""
        lengths = torch.zeros(batch, dtype=torch.long, device=self.table.weight.device)
        return RecurrentState(lengths, self.decoder.zero_state(batch, self.table.weight))


class RecurrentEncoderDecoder(Recurrent):
    """Encode the source into states, then decode the target        Sutskever 2014, Bahdanau 2015, Luong 2015 · F5, F6

    h̃_t = tanh(W [c_t; s_t]): the context is concatenated with the decoder's state before the output layer. With
    `attention="none"` c is the encoder's last state, one fixed vector for the whole source (the bottleneck of F5), or
    another function of its states; with `cell="window"` both networks are feed-forward (F7).
    """

    points = ("source.tokens", "target.tokens", "initial_state", "context", "logits")

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        if config.target_vocabulary is not None:
            self.target_table = nn.Embedding(config.target_vocabulary, config.width)
        self.encoder = make_network(config, bidirectional=config.bidirectional)
        self.bridge = nn.Linear(config.width, config.layers * self.decoder.state_width)
        self.summary = None if config.context == "last" else SourceContext(config.context, config.width)
        self.cross: RecurrentAttention | None = None
        if config.attention != "none":
            self.cross = RecurrentAttention(config.attention, config.width, softmax=config.softmax)
        self.combine = nn.Linear(2 * config.width, config.width)
        initialize(self)

    def forward(
        self,
        source: Int[Tensor, "batch source_tokens"],
        target: Int[Tensor, "batch target_tokens"],
        source_lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch target_tokens vocabulary"]:
        """Teacher forcing (T1): logits for the token after each target position."""
        return self.apply_head("next_token", self.teacher_forced_states(source, target, source_lengths))

    def teacher_forced_states(
        self,
        source: Int[Tensor, "batch source_tokens"],
        target: Int[Tensor, "batch target_tokens"],
        source_lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch target_tokens width"]:
        """The decoder's states at every position of a given target (T1)."""
        state = self.start(source, source_lengths)
        check_tokens(self.decoder_table, target=target)
        check_same_batch(source, target)
        return self.states(target, state=state)

    def start(
        self, source: Int[Tensor, "batch tokens"], lengths: Int[Tensor, " batch"] | None = None, *, capacity: int = 0
    ) -> RecurrentState:
        """Encode the source: s_0 = tanh(W c), with c the encoder's last state h_n or another function of its states."""
        check_tokens(self.table, lengths, source=source)
        x = self.tap("source.tokens", embedding_lookup(self.table, source))
        memory, ends = self.encoder(self.dropout(x), lengths=lengths)
        last = self.encoder.last(memory, ends, lengths) if self.summary is None else self.summary(memory, lengths)
        state = self.tap("initial_state", torch.tanh(self.bridge(last)))
        layers = self.config.layers
        first = state.view(-1, layers, self.bridge.out_features // layers).transpose(0, 1)
        hidden = (first.contiguous(), *(torch.zeros_like(first) for _ in ends[1:]))
        mask = None if lengths is None else padding(lengths, source.shape[1])
        decoded = torch.zeros(len(source), dtype=torch.long, device=source.device)
        return RecurrentState(decoded, hidden, memory, mask, last)

    def states(
        self,
        tokens: Int[Tensor, "batch tokens"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        state: RecurrentState,
    ) -> Float[Tensor, "batch tokens width"]:
        x = self.tap("target.tokens", embedding_lookup(self.decoder_table, tokens))
        states, state.hidden = self.decoder(self.dropout(x), state.hidden, lengths)
        return self.dropout(self.with_context(states, state))

    def with_context(
        self, states: Float[Tensor, "batch tokens width"], state: RecurrentState
    ) -> Float[Tensor, "batch tokens width"]:
        """h̃: the decoder's states combined with the context that each of them reads from the source."""
        if state.memory is None or state.context is None:
            raise UsageError("this hidden state has no encoded source; create it with model.start(source)")
        if self.cross is None:
            context = state.context[:, None].expand_as(states)
        else:
            context = self.cross(states, state.memory, state.memory_mask)
        context = self.tap("context", context)
        return torch.tanh(self.combine(torch.cat([context, states], dim=-1)))

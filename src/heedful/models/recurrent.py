"""Recurrent networks: language model, and encoder-decoder with a fixed context or attention (F4–F6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from heedful.errors import UsageError
from heedful.layers.attention import attention_weights
from heedful.layers.embedding import embedding_lookup
from heedful.layers.masks import Mask, padding
from heedful.layers.scores import ScoreName, make_score
from heedful.layers.taps import Tapped
from heedful.models.heads import NextToken, OutputProjection
from heedful.models.model_config import RecurrentConfig
from heedful.models.token_inputs import check_same_batch, check_tokens
from heedful.models.transformer import initialize
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

    def reorder(self, rows: Int[Tensor, " chosen"], rows_per_source: int = 1) -> None:
        self.lengths = self.lengths[rows]
        self.hidden = tuple(part[:, rows] for part in self.hidden)
        self.memory = None if self.memory is None else self.memory[rows]
        self.context = None if self.context is None else self.context[rows]
        if self.memory_mask is not None and self.memory_mask.allowed is not None:
            self.memory_mask = Mask(allowed=self.memory_mask.allowed[rows])


class Recurrence(nn.Module):
    """h_t = cell(x_t, h_{t−1}), by PyTorch's GRU (Cho 2014) or LSTM (Hochreiter & Schmidhuber 1997)."""

    def __init__(self, config: RecurrentConfig, *, bidirectional: bool = False) -> None:
        super().__init__()
        kind = nn.LSTM if config.cell == "lstm" else nn.GRU
        self.cell = kind(
            config.width,
            config.width // 2 if bidirectional else config.width,
            num_layers=config.layers,
            batch_first=True,
            bidirectional=bidirectional,
            dropout=config.dropout if config.layers > 1 else 0.0,
        )

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        hidden: tuple[Tensor, ...] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch tokens width"], tuple[Tensor, ...]]:
        """States at every token, and the hidden state after the last *real* one; padding changes nothing (T3)."""
        if x.shape[1] == 0:
            return x, hidden or self.zero_state(len(x), x)
        start = hidden if hidden is None or len(hidden) > 1 else hidden[0]
        if lengths is None:
            states, end = self._run(x, start)
            return states, _tuple(end)
        if int(lengths.max()) > x.shape[1]:
            raise UsageError(f"a length of {int(lengths.max())} does not fit a batch of {x.shape[1]} tokens")
        # A packed row needs a token: an empty row runs over one pad, and its state is restored afterwards.
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        output, end = self._run(packed, start)
        states, _ = pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
        read = (lengths > 0)[:, None]
        before = hidden or self.zero_state(len(x), x)
        return states * read[..., None], tuple(
            torch.where(read, new, old) for new, old in zip(_tuple(end), before, strict=True)
        )

    def _run(self, x: Any, start: Any) -> tuple[Any, Any]:
        """Run the cell without oneDNN, which caches memory for every shape it sees and is several times slower for a
        single token."""
        mkldnn: Any = torch.backends.mkldnn
        enabled, mkldnn.enabled = mkldnn.enabled, False
        try:
            return self.cell(x, start)
        finally:
            mkldnn.enabled = enabled

    def zero_state(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        """The hidden state before the first token, of the dtype and on the device of `like`."""
        rows = self.cell.num_layers * (2 if self.cell.bidirectional else 1)
        zeros = like.new_zeros(rows, batch, self.cell.hidden_size)
        return (zeros,) * (2 if isinstance(self.cell, nn.LSTM) else 1)

    def reset_parameters(self) -> None:
        """Orthogonal recurrent matrices keep a signal's norm over many steps (Saxe 2014); forget-gate biases of 1
        keep its content (Jozefowicz 2015)."""
        for name, weight in self.cell.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(weight)
                if isinstance(self.cell, nn.LSTM) and name.startswith("bias_ih"):
                    nn.init.ones_(weight.chunk(4)[1])
                continue
            for gate in weight.chunk(4 if isinstance(self.cell, nn.LSTM) else 3):
                (nn.init.orthogonal_ if name.startswith("weight_hh") else nn.init.xavier_normal_)(gate)


def _tuple(hidden: Any) -> tuple[Tensor, ...]:
    return hidden if isinstance(hidden, tuple) else (hidden,)


class Recurrent(nn.Module):
    """Base of both recurrent families: token tables, decoder cell and output layer."""

    states: Callable[..., Tensor]

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Embedding(config.vocabulary, config.width)
        self.target_table: nn.Embedding | None = None
        self.dropout = nn.Dropout(config.dropout)
        self.decoder = Recurrence(config)
        vocabulary = config.target_vocabulary or config.vocabulary
        self.next_token = NextToken(config.width, vocabulary, tied=config.tie_output)

    @property
    def device(self) -> torch.device:
        return self.table.weight.device

    @property
    def decoder_table(self) -> nn.Embedding:
        """Table of the tokens that the decoder reads and, when tied, predicts."""
        return self.table if self.target_table is None else self.target_table

    def apply_head(self, task: str, states: Tensor) -> Tensor:
        return nn.functional.linear(*self.output_projection(task, states))

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
        return self.apply_head("next_token", states[:, -1:] if last else states)


class RecurrentDecoder(Recurrent):
    """A recurrent language model        Mikolov 2010 · F4"""

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
        states, hidden = self.decoder(self.dropout(embedding_lookup(self.table, tokens)), hidden, lengths)
        if state is not None:
            state.hidden = hidden
        return self.dropout(states)

    def start(self, batch: int, *, capacity: int = 0) -> RecurrentState:
        """A zero hidden state. `capacity` is for KV caches; a hidden state never grows."""
        lengths = torch.zeros(batch, dtype=torch.long, device=self.table.weight.device)
        return RecurrentState(lengths, self.decoder.zero_state(batch, self.table.weight))


class Context(Tapped):
    """c_t = Σ_j α_tj h_j: attention of the decoder's state s_t to the encoder's states        Luong 2015 · F6

    Attention (A1) with the decoder's state as query and the encoder's states as keys and values.
    (One set of notes prints o_i = Σ_j α_ij v_i; the sum must run over v_j.)
    """

    points: ClassVar[tuple[str, ...]] = ("weights", "")

    def __init__(self, score: ScoreName, width: int) -> None:
        super().__init__()
        self.score = make_score(score, width, width)

    def forward(
        self,
        states: Float[Tensor, "batch queries width"],
        memory: Float[Tensor, "batch keys width"],
        mask: Mask | None,
    ) -> Float[Tensor, "batch queries width"]:
        query, key = states[:, None], memory[:, None]  # one head
        weights = self.tap("weights", attention_weights(query, key, mask, score=self.score))
        return self.tap("", (weights @ key)[:, 0])


class RecurrentEncoderDecoder(Recurrent):
    """Encode the source into states, then decode the target        Sutskever 2014, Bahdanau 2015, Luong 2015 · F5, F6

    h̃_t = tanh(W [c_t; s_t]): the context is concatenated with the decoder's state before the output layer. With
    `attention="none"` c is the encoder's last state, one fixed vector for the whole source (the bottleneck of F5).
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        if config.target_vocabulary is not None:
            self.target_table = nn.Embedding(config.target_vocabulary, config.width)
        self.encoder = Recurrence(config, bidirectional=config.bidirectional)
        self.bridge = nn.Linear(config.width, config.layers * config.width)
        self.cross = None if config.attention == "none" else Context(config.attention, config.width)
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
        """Encode the source: s_0 = tanh(W h_n), with h_n the encoder's last state (both directions concatenated)."""
        check_tokens(self.table, lengths, source=source)
        memory, ends = self.encoder(self.dropout(embedding_lookup(self.table, source)), lengths=lengths)
        directions = 2 if self.config.bidirectional else 1
        last = torch.cat(list(ends[0][-directions:]), dim=-1)  # batch width
        first = torch.tanh(self.bridge(last)).view(-1, self.config.layers, self.config.width).transpose(0, 1)
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
        if state.memory is None or state.context is None:
            raise UsageError("this hidden state has no encoded source; create it with model.start(source)")
        x = self.dropout(embedding_lookup(self.decoder_table, tokens))
        states, state.hidden = self.decoder(x, state.hidden, lengths)
        if self.cross is None:
            context = state.context[:, None].expand_as(states)
        else:
            context = self.cross(states, state.memory, state.memory_mask)
        return self.dropout(torch.tanh(self.combine(torch.cat([context, states], dim=-1))))

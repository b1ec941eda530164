"""Recurrent networks trained with heedful, for `trust_remote_code=True`: language models and encoder-decoders.

Needs torch and transformers only. Names of modules and weights are heedful's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast, Seq2SeqLMOutput

from .configuration_heedful_recurrent import HeedfulRecurrentConfig
from .generation_heedful import HeedfulSeq2SeqGeneration, token_loss


class HiddenState:
    """h of each layer and row of a batch, and for an LSTM also its cell c: what `generate` passes between steps."""

    def __init__(self, parts: tuple[Tensor, ...], length: int = 0) -> None:
        self.parts, self.length = parts, length

    def get_seq_length(self, layer: int = 0) -> int:
        """Tokens that were read."""
        return self.length

    def reorder_cache(self, rows: Tensor) -> None:
        self.parts = tuple(part.index_select(1, rows) for part in self.parts)


class HeedfulRecurrence(nn.Module):
    """h_t = cell(x_t, h_{t−1}) by a GRU or LSTM; padding on either side of a text changes nothing."""

    main_input_name = "input_ids"  # what `generate` calls the input of an encoder

    def __init__(self, config: HeedfulRecurrentConfig, bidirectional: bool = False) -> None:
        super().__init__()
        self.cell = (nn.LSTM if config.cell == "lstm" else nn.GRU)(
            config.width,
            config.width // 2 if bidirectional else config.width,
            num_layers=config.layers,
            batch_first=True,
            bidirectional=bidirectional,
            dropout=config.dropout if config.layers > 1 else 0.0,
        )

    def forward(self, x: Tensor, real: Tensor, hidden: tuple[Tensor, ...] | None = None) -> Any:
        """States at every token, zero at padding, and the hidden state after the last real token."""
        hidden = hidden or self.zero_state(x)
        start = hidden if len(hidden) > 1 else hidden[0]
        if bool(real.all()):
            states, end = self.cell(x, start)
            return states, end if isinstance(end, tuple) else (end,)
        lengths, first = real.sum(1), real.int().argmax(1)
        tokens = torch.arange(x.shape[1], device=x.device)
        shifted = (tokens + first[:, None]) % x.shape[1]  # the real tokens of each row, then its padding
        x = x.gather(1, shifted[..., None].expand_as(x))
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        output, end = self.cell(packed, start)
        states, _ = pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
        back = (tokens - first[:, None]) % x.shape[1]
        states = states.gather(1, back[..., None].expand_as(states)) * real[..., None]
        ends = end if isinstance(end, tuple) else (end,)
        has_text = (lengths > 0)[:, None]
        return states, tuple(torch.where(has_text, new, old) for new, old in zip(ends, hidden, strict=True))

    def zero_state(self, like: Tensor) -> tuple[Tensor, ...]:
        rows = self.cell.num_layers * (2 if self.cell.bidirectional else 1)
        zeros = like.new_zeros(rows, len(like), self.cell.hidden_size)
        return (zeros,) * (2 if isinstance(self.cell, nn.LSTM) else 1)


class HeedfulScore(nn.Module):
    """Scores of each decoder state with each encoder state: q·k, q·k/√d, qᵀWk, vᵀ tanh(W_q q + W_k k), or 0."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind = kind
        shapes = {
            "bilinear": {"weight": (1, width, width)},
            "additive": {"query_weight": (1, width, width), "key_weight": (1, width, width), "vector": (1, width, 1)},
        }
        for name, shape in shapes.get(kind, {}).items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        if self.kind == "bilinear":
            return query @ self.weight[0] @ key.mT
        if self.kind == "additive":
            q, k = (query @ self.query_weight[0]).unsqueeze(-2), (key @ self.key_weight[0]).unsqueeze(-3)
            return (torch.tanh(q + k) @ self.vector[0]).squeeze(-1)
        if self.kind == "uniform":
            return query.new_zeros(len(query), query.shape[1], key.shape[1])
        return query @ key.mT / (math.sqrt(query.shape[-1]) if self.kind == "scaled_dot" else 1.0)


class HeedfulContext(nn.Module):
    """c_t = Σ_j α_tj h_j: attention of the decoder's state s_t to the encoder's states."""

    def __init__(self, config: HeedfulRecurrentConfig) -> None:
        super().__init__()
        self.score, self.softmax = HeedfulScore(config.attention, config.width), config.softmax

    def forward(self, states: Tensor, memory: Tensor, real: Tensor) -> Tensor:
        weights = self.score(states, memory)
        if self.softmax:
            weights = weights.masked_fill(~real[:, None], torch.finfo(states.dtype).min).softmax(-1)
        return (weights * real[:, None]) @ memory


class HeedfulNextToken(nn.Module):
    """Logits of every token: the product with the token table, or with a table of their own."""

    def __init__(self, config: HeedfulRecurrentConfig) -> None:
        super().__init__()
        self.weight = None if config.tie_output else nn.Parameter(torch.zeros(config.vocab_size, config.width))

    def forward(self, states: Tensor, table: nn.Embedding) -> Tensor:
        return F.linear(states, table.weight if self.weight is None else self.weight)


class HeedfulRecurrentPreTrainedModel(PreTrainedModel):
    """Token tables, recurrent networks and output layer of a configuration."""

    config_class = HeedfulRecurrentConfig
    _is_stateful = True

    def __init__(self, config: HeedfulRecurrentConfig) -> None:
        super().__init__(config)
        self.table = nn.Embedding(config.vocabulary, config.width)
        self.target_table = nn.Embedding(config.target_vocabulary, config.width) if config.target_vocabulary else None
        self.dropout = nn.Dropout(config.dropout)
        self.decoder = HeedfulRecurrence(config)
        self.next_token = HeedfulNextToken(config)
        if config.family == "recurrent_encoder_decoder":
            self.encoder = HeedfulRecurrence(config, bidirectional=config.bidirectional)
            self.bridge = nn.Linear(config.width, config.layers * config.width)
            self.cross = None if config.attention == "none" else HeedfulContext(config)
            self.combine = nn.Linear(2 * config.width, config.width)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the first step makes a `HiddenState`

    def get_input_embeddings(self) -> nn.Embedding:
        return self.table

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.table = value

    @property
    def decoder_table(self) -> nn.Embedding:
        return self.target_table or self.table

    def read(self, tokens: Tensor, attention_mask: Tensor | None, state: HiddenState) -> Tensor:
        """The decoder's states after these tokens, which follow those of the hidden state."""
        real = real_tokens(tokens, attention_mask)
        states, state.parts = self.decoder(self.dropout(self.decoder_table(tokens)), real, state.parts)
        state.length += tokens.shape[1]
        return states


class HeedfulRecurrentForCausalLM(HeedfulRecurrentPreTrainedModel, GenerationMixin):
    """Logits of the token after each position."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: HiddenState | None = None,
        labels: Tensor | None = None,
        use_cache: bool = True,
        logits_to_keep: int = 0,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        state = past_key_values or HiddenState(self.decoder.zero_state(self.table(input_ids)))
        states = self.dropout(self.read(input_ids, attention_mask, state))
        logits = self.next_token(states[:, -logits_to_keep:], self.table)
        loss = None if labels is None else token_loss(logits[:, :-1], labels[:, 1:])
        return CausalLMOutputWithPast(loss, logits, state if use_cache else None)


class HeedfulRecurrentForSeq2SeqLM(HeedfulSeq2SeqGeneration, HeedfulRecurrentPreTrainedModel, GenerationMixin):
    """Logits of the target token after each position, given a source: h̃_t = tanh(W [c_t; s_t])."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: HiddenState | None = None,
        labels: Tensor | None = None,
        use_cache: bool = True,
        **options: Any,
    ) -> Seq2SeqLMOutput:
        memory = self.encode(input_ids, attention_mask) if encoder_outputs is None else encoder_outputs[0]
        real = real_tokens(memory[..., 0], attention_mask)
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        last = self.last_state(memory, real)
        state = past_key_values or HiddenState(self.first_hidden(last))
        states = self.read(decoder_input_ids, decoder_attention_mask, state)
        context = last[:, None].expand_as(states) if self.cross is None else self.cross(states, memory, real)
        combined = self.dropout(torch.tanh(self.combine(torch.cat([context, states], dim=-1))))
        logits = self.next_token(combined, self.decoder_table)
        loss = None if labels is None else token_loss(logits, labels)
        return Seq2SeqLMOutput(loss, logits, state if use_cache else None, encoder_last_hidden_state=memory)

    def encode(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The encoder's states at every token."""
        memory, _ = self.encoder(self.dropout(self.table(tokens)), real_tokens(tokens, attention_mask))
        return memory

    def last_state(self, memory: Tensor, real: Tensor) -> Tensor:
        """The encoder's state after the last token; that of the backward direction is at the first one."""
        first = real.int().argmax(1)
        last = (first + real.sum(1) - 1).clamp(min=0)
        rows = torch.arange(len(memory), device=memory.device)
        if not self.config.bidirectional:
            return memory[rows, last]
        forward, backward = memory.chunk(2, dim=-1)
        return torch.cat([forward[rows, last], backward[rows, first]], dim=-1)

    def first_hidden(self, last: Tensor) -> tuple[Tensor, ...]:
        """s_0 = tanh(W h_n), and for an LSTM c_0 = 0."""
        hidden = torch.tanh(self.bridge(last)).view(len(last), self.config.layers, -1).transpose(0, 1).contiguous()
        return (hidden, torch.zeros_like(hidden)) if self.config.cell == "lstm" else (hidden,)


def real_tokens(tokens: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Mask of the tokens that are not padding; they are the last of those that `attention_mask` covers."""
    if attention_mask is None:
        return torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    return attention_mask[:, -tokens.shape[1] :].bool()

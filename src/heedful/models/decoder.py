"""Decoder: a causal language model (F2)."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.errors import UsageError
from heedful.layers.block import position_ids
from heedful.layers.kv_cache import KVCache
from heedful.layers.masks import documents
from heedful.models.model_config import TransformerConfig
from heedful.models.token_inputs import check_tokens
from heedful.models.transformer import Transformer, initialize, make_embedding, make_stack
from heedful.shapes import Float, Int


class Decoder(Transformer):
    """P(x_1 … x_n) = Π_i P(x_i | x_1 … x_{i−1}), all factors at once        Radford 2018 · F2, E3, T1

    Rows padded at the end need no padding mask: the causal mask hides padding from real tokens. With
    `decoder_causal=False` a position sees the token it predicts: it can be trained, but hardly generate (T1).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.embedding = make_embedding(config)
        self.decoder = make_stack(config, "decoder", config.layers)
        initialize(self)

    def forward(
        self, tokens: Int[Tensor, "batch tokens"], *, document_ids: Int[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens vocabulary"]:
        """Logits for the token after each position."""
        return self.apply_head("next_token", self.states(tokens, document_ids=document_ids))

    def states(
        self,
        tokens: Int[Tensor, "batch tokens"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        document_ids: Int[Tensor, "batch tokens"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        """The last block's states. Documents packed in one row have separate positions and attention.

        `lengths` is accepted, as by an encoder, and not needed (see above).
        """
        check_tokens(self.table, lengths, tokens=tokens)
        positions = position_ids(tokens) if cache is None else cache.positions(tokens.shape[1])
        mask = self.decoder_mask(tokens, cache)
        if document_ids is not None:
            self._check_packing()
            mask = mask & documents(document_ids)
            positions = positions_in_documents(document_ids)
        self.check_length(tokens.shape[1] + (0 if cache is None else cache.longest), positions)
        x = self.embedding(self.table, tokens, positions)
        return self.decoder(x, mask, cache=cache)

    def _check_packing(self) -> None:
        """Raise UsageError unless scores depend on position differences alone: positions run through a packed row."""
        if self.config.score == "position":
            raise UsageError(
                "documents cannot be packed with score 'position', which depends on absolute positions; "
                "use score 'distance', or one row per document"
            )
        if self.config.positions == "rotary" and self.config.score not in ("dot", "scaled_dot"):
            raise UsageError(
                f"documents cannot be packed with rotary positions and score '{self.config.score}', which depends on "
                "absolute positions; use score 'scaled_dot', other positions, or one row per document"
            )

    def start(self, batch: int, *, capacity: int = 0) -> KVCache:
        """An empty KV cache for `batch` sequences, with memory reserved for `capacity` tokens each."""
        return KVCache(batch, self.config.layers, device=self.table.weight.device, capacity=capacity)

    def extend(
        self,
        tokens: Int[Tensor, "batch tokens"],
        state: KVCache,
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        last: bool = False,
    ) -> Float[Tensor, "batch positions vocabulary"]:
        """Append tokens to the KV cache; return the logits after each of them, or with `last` only after the last.

        `lengths`: how many of the new tokens are real, row by row.
        """
        states = self.states(tokens, cache=state)
        logits: Tensor = self.last_logits(states) if last else self.apply_head("next_token", states)
        state.advance(tokens.shape[1], lengths)
        return logits


def positions_in_documents(ids: Int[Tensor, "batch tokens"]) -> Int[Tensor, "batch tokens"]:
    """Position of each token in its own document: 0, 1, 2 … starting again wherever the id changes."""
    position = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    first = torch.ones_like(ids, dtype=torch.bool)
    first[:, 1:] = ids[:, 1:] != ids[:, :-1]
    return position - torch.where(first, position, 0).cummax(dim=1).values

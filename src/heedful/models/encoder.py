"""Encoder: bidirectional self-attention over a text (F3)."""

from __future__ import annotations

from torch import Tensor

from heedful.layers.block import position_ids
from heedful.layers.masks import Mask, padding
from heedful.models.model_config import TransformerConfig
from heedful.models.token_inputs import check_tokens
from heedful.models.transformer import Transformer, initialize, make_embedding, make_stack
from heedful.shapes import Float, Int


class Encoder(Transformer):
    """Tokens in, one state per token out; `config.tasks` names the heads on top        Devlin 2019 · F3

    With `encoder_causal` each token attends to earlier ones only (Q2).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.embedding = make_embedding(config)
        self.encoder = make_stack(config, "encoder", config.layers)
        initialize(self)

    def states(
        self,
        tokens: Int[Tensor, "batch tokens"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        segments: Int[Tensor, "batch tokens"] | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        """The last block's states. `lengths`: real tokens of each row, where rows are padded at the end."""
        check_tokens(self.table, lengths, segments, tokens=tokens)
        self.check_length(tokens.shape[1])
        x = self.embedding(self.table, tokens, position_ids(tokens), segments)
        real = None if lengths is None else padding(lengths, tokens.shape[1])
        return self.encoder(x, self.attention_mask(real, mask, Mask(causal=self.config.encoder_causal)))

    forward = states

"""Word vectors: three embedding tables (E1, E2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.layers.embedding import embedding_lookup
from heedful.models.model_config import WordVectorsConfig
from heedful.models.token_inputs import check_ids
from heedful.shapes import Float, Int


class WordVectors(nn.Module):
    """Each word has a vector as a word (v), as a context word (u), and for word order (s)        E1, E2

        P(c stands near w) = σ(u_c · v_w)                          Mikolov 2013
        P(and before it, not after) = σ(s_c · v_w)                 Song 2018

    v is in `table`, the vectors used after training, u in `context`, s in `order` (None with `word_order=False`: plain
    word2vec). Gradients are sparse: a batch touches only the rows of its words.
    """

    def __init__(self, config: WordVectorsConfig) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Embedding(config.vocabulary, config.width, sparse=True)
        self.context = nn.Embedding(config.vocabulary, config.width, sparse=True)
        self.order = nn.Embedding(config.vocabulary, config.width, sparse=True) if config.word_order else None
        with torch.no_grad():  # as in word2vec: small words, zero contexts
            nn.init.uniform_(self.table.weight, -0.5 / config.width, 0.5 / config.width)
            nn.init.zeros_(self.context.weight)
            if self.order is not None:
                nn.init.zeros_(self.order.weight)

    @property
    def device(self) -> torch.device:
        return self.table.weight.device

    def forward(self, words: Int[Tensor, "*axes"]) -> Float[Tensor, "*axes width"]:
        """The words' vectors."""
        check_ids("words", words, self.table)
        return embedding_lookup(self.table, words, "word")

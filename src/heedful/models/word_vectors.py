"""Word vectors: three tables and no layers; where it all started (E1, E2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.models.model_config import WordVectorsConfig
from heedful.shapes import Float, Int


class WordVectors(nn.Module):
    """A vector for what a word means, one for the company it keeps, one for the side it keeps to        E1, E2

        P(c stands near w) = σ(u_c · v_w)                          Mikolov 2013
        P(and before it, not behind) = σ(s_c · v_w)                Song 2018

    v from `table`, the vectors one uses afterwards, u from `company`, s from `side`. Gradients are sparse: a batch
    touches the rows of its words alone, and the rest of the tables is not even looked at.
    """

    def __init__(self, config: WordVectorsConfig) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Embedding(config.vocabulary, config.width, sparse=True)
        self.company = nn.Embedding(config.vocabulary, config.width, sparse=True)
        self.side = nn.Embedding(config.vocabulary, config.width, sparse=True)
        with torch.no_grad():  # as in word2vec: small, and nothing known of any company
            nn.init.uniform_(self.table.weight, -0.5 / config.width, 0.5 / config.width)
            nn.init.zeros_(self.company.weight)
            nn.init.zeros_(self.side.weight)

    def forward(self, words: Int[Tensor, "*axes"]) -> Float[Tensor, "*axes width"]:
        """The words' vectors."""
        vectors: Tensor = self.table(words)
        return vectors

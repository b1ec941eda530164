"""Attention of a recurrent decoder to the encoder's states (F6)."""

from __future__ import annotations

from torch import Tensor

from heedful.layers.attention import attention_weights
from heedful.layers.masks import UNMASKED, Mask
from heedful.layers.scores import ContentScoreName, make_score
from heedful.layers.taps import Tapped
from heedful.shapes import Float


class RecurrentAttention(Tapped):
    """c_t = Σ_j α_tj h_j: attention of the decoder's state s_t to the encoder's states        Luong 2015 · F6

    Attention (A1) with the decoder's state as query and the encoder's states as keys and values; without `softmax` the
    weights α are the scores (A2).
    (One set of notes prints o_i = Σ_j α_ij v_i; the sum must run over v_j.)
    """

    points = ("mask", "scores", "weights")

    def __init__(self, score: ContentScoreName, width: int, *, softmax: bool = True) -> None:
        super().__init__()
        self.score = make_score(score, width, width)
        self.softmax = softmax

    def forward(
        self,
        states: Float[Tensor, "batch queries width"],
        memory: Float[Tensor, "batch keys width"],
        mask: Mask | None,
    ) -> Float[Tensor, "batch queries width"]:
        query, key = states[:, None], memory[:, None]  # one head
        if not self.has_listener():
            weights = attention_weights(query, key, mask, score=self.score, softmax=self.softmax)
            return (weights @ key)[:, 0]
        allowed = (mask or UNMASKED).dense(query.shape[-2], key.shape[-2], query.device)
        allowed = allowed.expand(len(query), 1, query.shape[-2], key.shape[-2])
        allowed = self.tap("mask", allowed, allowed)
        mask = Mask(allowed=allowed)

        def score(query: Tensor, key: Tensor) -> Tensor:
            return self.tap("scores", self.score(query, key), allowed)

        weights = attention_weights(query, key, mask, score=score, softmax=self.softmax)
        weights = self.tap("weights", weights, allowed)
        return (weights @ key)[:, 0]

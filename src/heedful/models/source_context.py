"""One vector for a whole source: the context of an encoder-decoder without attention (F5, F7)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from heedful.layers.attention import attention
from heedful.layers.masks import Mask
from heedful.shapes import Float, Int

ContextName = Literal["last", "mean", "maximum", "learned"]


class SourceContext(nn.Module):
    """mean     c = 1/n Σ_j h_j                             F7
    maximum  c = max_j h_j, feature by feature           F7
    learned  c = Σ_j softmax_j(v · h_j) h_j              v a learned query, the same for every text: A1, F7

    The context that is the encoder's last state needs no module.
    """

    def __init__(self, name: ContextName, width: int) -> None:
        super().__init__()
        self.name = name
        self.query = nn.Parameter(torch.empty(1, width)) if name == "learned" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.query is not None:
            nn.init.normal_(self.query)

    def forward(
        self, states: Float[Tensor, "batch tokens width"], lengths: Int[Tensor, " batch"] | None
    ) -> Float[Tensor, "batch width"]:
        """The context of the real states; zeros for a text without any."""
        batch, tokens, width = states.shape
        ends = torch.full((batch,), tokens, device=states.device) if lengths is None else lengths
        real = torch.arange(tokens, device=states.device) < ends[:, None]
        if self.name == "mean" or tokens == 0:
            return (states * real[..., None]).sum(1) / ends.clamp(min=1)[:, None]
        if self.query is not None:
            query = self.query.expand(batch, 1, width)
            return attention(query, states, states, Mask(allowed=real[:, None]))[:, 0]
        maximum = states.masked_fill(~real[..., None], torch.finfo(states.dtype).min).amax(1)
        return maximum * (ends > 0)[:, None]

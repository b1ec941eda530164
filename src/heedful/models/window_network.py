"""A feed-forward network over a window of tokens, in a recurrent network's place (F7)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heedful.errors import UsageError
from heedful.layers.taps import Tapped
from heedful.shapes import Float, Int

WindowInputs = Literal["concatenate", "sum", "positions"]


class WindowLayer(nn.Module):
    """concatenate  h_t = tanh(W [x_{t−n+1}; …; x_t] + b)              Bengio 2003, eq. 1 · F7
    sum          h_t = tanh(W Σ_k x_{t−k} + b)                      blind to order (Q9)
    positions    h_t = tanh(W Σ_k tanh(x_{t−k} + p_k) + b)          order from positions (Q9)

    Positions that were only added would sum to a constant: the inner tanh makes the order matter.
    """

    def __init__(self, width: int, output: int, *, window: int, inputs: WindowInputs) -> None:
        super().__init__()
        self.inputs = inputs
        self.linear = nn.Linear(window * width if inputs == "concatenate" else width, output)
        self.positions = nn.Parameter(torch.empty(window, width)) if inputs == "positions" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.positions is not None:
            nn.init.normal_(self.positions, std=self.positions.shape[1] ** -0.5)

    def forward(self, windows: Float[Tensor, "batch tokens window width"]) -> Float[Tensor, "batch tokens output"]:
        if self.inputs == "concatenate":
            return torch.tanh(self.linear(windows.flatten(2)))
        if self.positions is not None:
            windows = torch.tanh(windows + self.positions)
        return torch.tanh(self.linear(windows.sum(2)))


class WindowNetwork(Tapped):
    """Layers of feed-forward networks over the last `window` states: no recurrence, a memory of fixed length.

    It takes the place of a `Recurrence`: its hidden state is the last `window` − 1 inputs of each layer. Bidirectional,
    half of the features read the window before a token and half the one after it.
    """

    def __init__(
        self, width: int, layers: int, *, window: int, inputs: WindowInputs, dropout: float, bidirectional: bool = False
    ) -> None:
        super().__init__()
        self.width, self.window, self.dropout = width, window, dropout
        self.directions = 2 if bidirectional else 1
        output = width // self.directions
        self.cell = nn.ModuleList(
            WindowLayer(width, output, window=window, inputs=inputs) for _ in range(layers * self.directions)
        )
        names = ("hidden", "backward.hidden")[: self.directions]
        self.hidden_taps = [f"{layer}.{name}" for layer in range(layers) for name in names]
        self.points = (*self.hidden_taps, "states")

    @property
    def state_width(self) -> int:
        """Width of a layer's hidden state."""
        return (self.window - 1) * self.width

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        hidden: tuple[Tensor, ...] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch tokens width"], tuple[Tensor, ...]]:
        """States at every token, and the inputs that the next token's window reads; padding changes nothing (T3)."""
        batch, tokens, _ = x.shape
        if not tokens:
            return x, hidden or self.zero_state(batch, x)
        (before,) = hidden or self.zero_state(batch, x)
        if type(lengths) is Tensor and int(lengths.max()) > tokens:  # a dry run's tensors have no contents
            raise UsageError(f"a length of {int(lengths.max())} does not fit a batch of {tokens} tokens")
        ends = lengths if lengths is not None else torch.full((batch,), tokens, device=x.device)
        real = (torch.arange(tokens, device=x.device) < ends[:, None])[..., None]
        after: list[Tensor] = []
        for layer, past in enumerate(before):
            x = (F.dropout(x, self.dropout, self.training) if layer else x) * real
            read = torch.cat([past.view(batch, self.window - 1, self.width), x], 1)
            rows = ends[:, None] + torch.arange(self.window - 1, device=x.device)
            after.append(read.gather(1, rows[..., None].expand(-1, -1, self.width)).flatten(1))
            x = self._layer(layer, read, x)
        return self.tap("states", x * real), (torch.stack(after),)

    def _layer(self, layer: int, read: Tensor, x: Tensor) -> Tensor:
        """The states of one layer: from the window that ends at each token; bidirectional, also the one that begins."""
        first, names = layer * self.directions, iter(self.hidden_taps[layer * self.directions :])
        forward = self.tap(next(names), self.cell[first](_windows(read, self.window)))
        if self.directions == 1:
            return forward
        following = F.pad(x, (0, 0, 0, self.window - 1))
        backward = self.cell[first + 1](_windows(following, self.window).flip(2))
        return torch.cat([forward, self.tap(next(names), backward)], -1)

    def zero_state(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        """The inputs before the first token: zeros."""
        return (like.new_zeros(len(self.cell) // self.directions, batch, self.state_width),)

    def last(
        self, states: Float[Tensor, "batch tokens width"], ends: tuple[Tensor, ...], lengths: Tensor | None
    ) -> Float[Tensor, "batch width"]:
        """The state that has read the text to its end: forward at its last token, backward at its first."""
        batch, tokens, width = states.shape
        if tokens == 0:
            return states.new_zeros(batch, width)
        index = torch.full((batch,), tokens, device=states.device) if lengths is None else lengths
        final = states[torch.arange(batch, device=states.device), (index - 1).clamp(min=0)]
        if self.directions == 1:
            return final
        return torch.cat([final[:, : width // 2], states[:, 0, width // 2 :]], -1)


def _windows(x: Float[Tensor, "batch longer width"], window: int) -> Float[Tensor, "batch tokens window width"]:
    """Every `window` consecutive vectors."""
    return x.unfold(1, window, 1).transpose(2, 3)

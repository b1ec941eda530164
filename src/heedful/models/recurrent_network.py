"""A recurrent network: a GRU or LSTM over the tokens of padded texts, with taps (F4)."""

from __future__ import annotations

from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from heedful.errors import UsageError
from heedful.layers.taps import Tapped, current_decode_position, decode_position
from heedful.models.model_config import RecurrentConfig
from heedful.models.recurrent_steps import gate_taps, run_time_steps
from heedful.shapes import Float, Int


class Recurrence(Tapped):
    """h_t = cell(x_t, h_{t−1}), by PyTorch's GRU (Cho 2014) or LSTM (Hochreiter & Schmidhuber 1997).

    The tap `states` passes the last layer's states. Gates and hidden states have taps of their own, one value a time
    step (`Recording.over_steps` joins them). While one of those is listened to, the cell also runs step by step; in
    training it then has no dropout between layers.
    """

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
        self.gate_taps = gate_taps(self.cell)
        self.points = (*self.gate_taps, "states")

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        hidden: tuple[Tensor, ...] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch tokens width"], tuple[Tensor, ...]]:
        """States at every token, and the hidden state after the last *real* one; padding changes nothing (T3)."""
        if x.shape[1] == 0:
            return x, hidden or self.zero_state(len(x), x)
        if self.has_listener(*self.gate_taps):
            states, end = self._observed(x, hidden or self.zero_state(len(x), x), lengths)
            if not self.has_listener(*self.gate_taps, edits_only=True):
                states, end = self._fused(x, hidden, lengths)
        else:
            states, end = self._fused(x, hidden, lengths)
        return self.tap("states", states), end

    def _observed(self, x: Tensor, hidden: tuple[Tensor, ...], lengths: Tensor | None) -> Any:
        """States and hidden state by single time steps, each gate passed to its tap."""
        first, rows = current_decode_position()

        def tap_gate(name: str, step: int, value: Tensor) -> Tensor:
            with decode_position(first + step, rows):
                return self.tap(name, value)

        return run_time_steps(self.cell, x, hidden, lengths, tap_gate)

    def _fused(self, x: Tensor, hidden: tuple[Tensor, ...] | None, lengths: Tensor | None) -> Any:
        """States and hidden state by PyTorch's cell."""
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
        with _without_onednn:
            return self.cell(x, start)

    @property
    def state_width(self) -> int:
        """Width of a layer's hidden state."""
        width: int = self.cell.hidden_size
        return width

    def last(self, states: Tensor, ends: tuple[Tensor, ...], lengths: Tensor | None) -> Float[Tensor, "batch width"]:
        """The last layer's state that has read the text to its end; both directions concatenated."""
        return torch.cat(list(ends[0][-(2 if self.cell.bidirectional else 1) :]), dim=-1)

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


class _WithoutOneDNN:
    """Turns oneDNN off, which caches memory for every shape it sees and is several times slower for a single token.

    The switch is process-wide: it is restored when the last thread leaves.
    """

    def __init__(self) -> None:
        self.lock, self.threads, self.enabled = Lock(), 0, True

    def __enter__(self) -> None:
        mkldnn: Any = torch.backends.mkldnn
        with self.lock:
            if not self.threads:
                self.enabled, mkldnn.enabled = mkldnn.enabled, False
            self.threads += 1

    def __exit__(self, *error: object) -> None:
        mkldnn: Any = torch.backends.mkldnn
        with self.lock:
            self.threads -= 1
            if not self.threads:
                mkldnn.enabled = self.enabled


_without_onednn = _WithoutOneDNN()


def _tuple(hidden: Any) -> tuple[Tensor, ...]:
    return hidden if isinstance(hidden, tuple) else (hidden,)

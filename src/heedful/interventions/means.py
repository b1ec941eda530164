"""Mean activations over a sample of text, which mean ablation substitutes for a part's value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.config import Config
from heedful.interventions.parts import is_decoded, model_parts
from heedful.layers.taps import TapSite, record


class ActivationMeans(Config):
    """Mean value at each tap that an ablation can replace: the content of activation_means.json."""

    texts: int
    means: dict[str, tuple[float, ...]]
    """Flattened: a vector, or the concatenated vectors of all heads."""
    heads: dict[str, int]
    """The number of heads of each tap that has one vector per head."""

    def at(self, tap: str) -> Tensor | None:
        """The mean at a tap: width, or heads × width."""
        if tap not in self.means:
            return None
        mean = torch.tensor(self.means[tap])
        return mean.view(self.heads[tap], -1) if tap in self.heads else mean


class MeanRecorder:
    """Sums the values at the taps of all parts over batches."""

    def __init__(self, model: Any) -> None:
        parts = [part for part in model_parts(model).values() if part.head is None and part.kind != "tap"]
        self.model = model
        self.taps = list(dict.fromkeys(part.tap for part in parts))
        self.taps += [part.attention_tap("heads") for part in parts if part.is_attention and not part.is_recurrent]
        self.sums: dict[str, Tensor] = {}
        self.tokens: dict[str, int] = {}
        self.texts = 0

    def add(self, run: Any, lengths: Sequence[Sequence[int]]) -> None:
        """Run a batch; `lengths` are the real tokens of each text: of its input and, if there is one, its target."""
        with torch.inference_mode(), record(self.model, *self.taps) as recorded:
            run()
        self.texts += len(lengths)
        for tap, values in recorded.items():
            if values.dim() < 4 or tap.endswith(".heads"):  # the biases of ALiBi are a table of pairs, without a mean
                self._add(tap, values, recorded.sites[tap][-1], lengths)

    def _add(self, tap: str, values: Tensor, site: TapSite, lengths: Sequence[Sequence[int]]) -> None:
        side = -1 if is_decoded(self.model, tap) else 0
        rows = values.transpose(1, 2) if values.dim() == 4 else values  # batch tokens (heads) width
        sizes = [length[side] for length in lengths]
        if len(rows) == 1:
            rows = rows.expand(len(sizes), *rows.shape[1:])
        real = [row[:size] for row, size in zip(rows, sizes, strict=True)]
        total = torch.stack([row.float().sum(0) for row in real]).sum(0).cpu()
        self.sums[tap] = self.sums[tap] + total if tap in self.sums else total
        self.tokens[tap] = self.tokens.get(tap, 0) + sum(sizes)

    def result(self) -> ActivationMeans:
        means = {tap: total / max(1, self.tokens[tap]) for tap, total in self.sums.items()}
        return ActivationMeans(
            texts=self.texts,
            means={tap: tuple(float(f"{x:.6g}") for x in mean.flatten().tolist()) for tap, mean in means.items()},
            heads={tap: len(mean) for tap, mean in means.items() if mean.dim() == 2},
        )

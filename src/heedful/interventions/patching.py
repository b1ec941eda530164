"""Activation patching: replace a part's value by its value for another text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.errors import UsageError
from heedful.interventions.kinds import Patch
from heedful.interventions.parts import Part
from heedful.layers.taps import TapSite

KEYS = ("keys", "values")
"""Taps of everything that attention reads, from its first token on, whatever the decode step."""
TABLES = {"mask": 0.0, "scores": torch.finfo(torch.float32).min, "weights": 0.0}
"""Taps with a row for each query and a column for each key, and the value of a missing key."""


@dataclass(frozen=True)
class PatchEdit:
    """The tap edit of a `Patch`, for a value of all tokens, of a decode step, or of a recurrent time step."""

    patch: Patch
    part: Part
    tap: str
    other: Tensor
    """The value for the other text: one row, all tokens."""
    grows: bool
    """Whether the value belongs to tokens that are decoded step by step."""
    by_time_step: bool
    """Whether the tap sees one token at a time even if all tokens are known: gates of recurrent networks."""

    def __call__(self, value: Tensor, site: TapSite) -> Tensor:
        if value.dim() < 3:
            return self._single_value(value)
        axis, first = _token_axis(value), 0 if self.point in KEYS else site.step
        tokens, length = value.shape[axis], self.other.shape[axis]
        end = min(first + tokens, length)
        indices = [index for index in self._wanted(tokens, length, first) if first <= index < end]
        if not indices:
            return value
        positions = torch.tensor(indices, device=value.device)
        new = self._fitting(self.other.to(value).index_select(axis, positions), value, axis)
        return value.index_copy(axis, positions - first, new.expand(len(value), *new.shape[1:]))

    @property
    def point(self) -> str:
        """The last part of the tap's name: "weights" of "decoder.1.cross.weights"."""
        return self.tap.rpartition(".")[2]

    def _wanted(self, tokens: int, length: int, first: int) -> Iterable[int]:
        """The positions to patch, checked against the other text's length."""
        wanted = self.patch.tokens
        if wanted is None:
            if not self.grows and not self.by_time_step and tokens != length:
                raise self._lengths_differ(tokens, length)
            return range(first, first + tokens)
        if max(wanted) >= length:
            raise UsageError(f"'{self.patch.text:.40}' has {length} tokens at {self.part.name}: no token {max(wanted)}")
        return wanted

    def _single_value(self, value: Tensor) -> Tensor:
        """The other text's value, for a part with a single value per text."""
        if self.patch.tokens is not None:
            raise UsageError(f"{self.part.name} has one value for the whole text: leave tokens out")
        if value.shape[1:] != self.other.shape[1:]:
            raise self._shapes_differ(value)
        return self.other.to(value).expand_as(value)

    def _fitting(self, new: Tensor, value: Tensor, axis: int) -> Tensor:
        """The patched tokens' values, cut or padded to the number of keys of this text."""
        if new.shape[-1] != value.shape[-1] and self.point in TABLES:
            keys, new_keys = value.shape[-1], new.shape[-1]
            if not self.grows or "cross" in self.tap.split("."):
                raise self._lengths_differ(keys, new_keys)
            padding = new.new_full((*new.shape[:-1], max(0, keys - new_keys)), TABLES[self.point])
            new = torch.cat([new[..., :keys], padding], -1)
        if new.shape[1:axis] + new.shape[axis + 1 :] != value.shape[1:axis] + value.shape[axis + 1 :]:
            raise self._shapes_differ(value)
        return new

    def _lengths_differ(self, tokens: int, length: int) -> UsageError:
        return UsageError(lengths_differ(self.part, self.patch, tokens, length))

    def _shapes_differ(self, value: Tensor) -> UsageError:
        shapes = (tuple(tensor.shape[1:]) for tensor in (value, self.other))
        return UsageError(
            "{} has the shape {} here and {} in '{:.40}'".format(self.part.name, *shapes, self.patch.text)
        )


def lengths_differ(part: Part, patch: Patch, tokens: int, length: int) -> str:
    """The error message for two texts of different lengths."""
    return (
        f"{part.name} has {tokens} tokens here and {length} in '{patch.text:.40}'; "
        "patch from a text of the same length, or name the tokens to patch"
    )


def _token_axis(value: Tensor) -> int:
    """The axis of tokens, which follows the head axis if there is one."""
    return 2 if value.dim() == 4 else 1

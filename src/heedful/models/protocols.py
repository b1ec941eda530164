"""The protocol of a model that generates: implemented by models and by the decoding backends that wrap them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class DecoderModel(Protocol):
    """A model that decodes step by step over a KV cache or a recurrent hidden state.

    `start(batch, capacity=…)` of a language model, or `start(source, lengths, capacity=…)` of an encoder-decoder,
    returns a `DecoderState`; `extend(tokens, state, lengths, last=…)` appends tokens to it and returns their logits.
    """

    @property
    def config(self) -> Any: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def start(self) -> Callable[..., Any]: ...

    @property
    def extend(self) -> Callable[..., Tensor]: ...

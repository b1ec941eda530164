"""What generation asks of a model: protocols met by the models and by the decoding backends that wrap them."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from heedful.layers.kv_cache import DecoderState
from heedful.models.model_config import RecurrentConfig, TransformerConfig
from heedful.shapes import Float, Int


@runtime_checkable
class DecodingModel(Protocol):
    """A model that decodes token by token, over a KV cache or a recurrent hidden state."""

    @property
    def config(self) -> TransformerConfig | RecurrentConfig: ...

    @property
    def table(self) -> nn.Embedding: ...

    def extend(
        self,
        tokens: Int[Tensor, "batch tokens"],
        state: Any,
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        last: bool = False,
    ) -> Float[Tensor, "batch positions vocabulary"]:
        """Append tokens to the state (prefill or decode step); return the logits after each, or only after the last."""
        ...


@runtime_checkable
class LanguageModel(DecodingModel, Protocol):
    """A decoder: `Decoder`, `RecurrentDecoder`, and the backends that wrap them."""

    def start(self, batch: int, *, capacity: int = 0) -> DecoderState:
        """An empty state for `batch` sequences, with memory reserved for `capacity` tokens each."""
        ...


@runtime_checkable
class EncoderDecoderModel(DecodingModel, Protocol):
    """An encoder-decoder: `EncoderDecoder`, `RecurrentEncoderDecoder`, and the backends that wrap them."""

    def start(
        self, source: Int[Tensor, "batch tokens"], lengths: Int[Tensor, " batch"] | None = None, *, capacity: int = 0
    ) -> DecoderState:
        """Encode the source; return a state without target tokens, with memory reserved for `capacity` of them."""
        ...

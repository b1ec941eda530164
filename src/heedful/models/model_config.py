"""Model configurations: frozen, validated, stored beside the weights."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, model_validator

from heedful.config import Config
from heedful.errors import UsageError
from heedful.layers.activations import ActivationName
from heedful.layers.embedding import Combine
from heedful.layers.multi_head_attention import even_split, shared_heads
from heedful.layers.norms import NormName
from heedful.layers.positions import SinusoidLayout
from heedful.layers.residual import NormOrder
from heedful.layers.scores import ScoreName

PositionName = Literal["none", "sinusoidal", "learned", "rotary", "alibi"]
Task = Literal["masked_token", "next_sentence", "sequence_class", "answer_span", "pooled"]
Pooling = Literal["first", "mean", "last"]
Layers = Annotated[int, Field(gt=0, le=1000)]
MAX_WIDTH = 1 << 20
Width = Annotated[int, Field(gt=0, le=MAX_WIDTH)]
Heads = Annotated[int, Field(gt=0, le=1 << 16)]
Rows = Annotated[int, Field(gt=0, le=(1 << 31) - 1)]
"""Rows of a table. Products of these sizes are numbers of bytes that fit into 64 bits."""


class TransformerConfig(Config):
    """Configuration of all three transformer families (F1–F3). The defaults are the paper's base model.

    Architectures of other papers are other values, not other classes: see `presets`.
    """

    family: Literal["encoder", "decoder", "encoder_decoder"]
    vocabulary: Rows
    """V; the source's where `target_vocabulary` is set."""
    target_vocabulary: Rows | None = None
    """Encoder-decoder only; None: source and target share one vocabulary and one table."""
    tie_output: bool = True
    """Tie the output layer to the input table (E3)."""
    output_bias: bool = False

    width: Width = 512
    heads: Heads = 8
    head_width: Width | None = None
    """d_k; None: width / heads."""
    value_width: Width | None = None
    """d_v; None: d_k."""
    key_value_heads: Heads | None = None
    """Fewer than heads: grouped-query attention."""
    layers: Layers = 6
    decoder_layers: Layers | None = None
    """Encoder-decoder only; None: as many as the encoder."""
    feed_forward: Width | None = None
    """m; None: 4 · width."""
    activation: ActivationName = "relu"
    gated: bool = False
    bias: bool = True

    score: ScoreName = "scaled_dot"
    softmax: bool = True
    window: Rows | None = None
    """Attend to neighbors nearer than this only."""
    skip: bool = True

    positions: PositionName = "sinusoidal"
    max_length: Rows = 1024
    """Size of a learned position table, and the longest text to use with other position encodings."""
    position_combine: Combine = "add"
    position_width: Width | None = None
    """With position_combine="concatenate": the part of the width that encodes the position; None: half."""
    position_layout: SinusoidLayout = "interleaved"
    rotary_base: PositiveFloat = 10_000.0

    norm: NormName = "layer"
    norm_order: NormOrder = "post"
    norm_epsilon: PositiveFloat = 1e-5
    final_norm: bool | None = None
    """One more norm after the last block; None: only when pre-norm."""
    embedding_norm: bool = False
    embedding_scale: bool = True
    """Multiply token vectors by √d."""
    segments: int = Field(default=0, ge=0)

    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)

    tasks: tuple[Task, ...] = ()
    """Heads beyond next-token prediction, which decoders always have."""
    classes: Width = 2
    pooling: Pooling = "first"
    """Pooled vector of a text: its first token through a dense layer, the mean, or the last token."""

    def resolved(self) -> dict[str, Any]:
        """Every setting with its default filled in instead of None."""
        d_k = self.head_width or even_split(self.width, self.heads)
        return {
            **self.model_dump(),
            "head_width": d_k,
            "value_width": self.value_width or d_k,
            "key_value_heads": self.key_value_heads or self.heads,
            "feed_forward": self.feed_forward or 4 * self.width,
            "final_norm": self.norm_order == "pre" if self.final_norm is None else self.final_norm,
            "decoder_layers": self.decoder_layers or self.layers if self.family == "encoder_decoder" else None,
        }

    @property
    def token_width(self) -> int:
        """Width of a token's vector: less than d where the position encoding is concatenated."""
        if self.position_combine == "add" or self.positions not in ("sinusoidal", "learned"):
            return self.width
        return self.width - (self.position_width or self.width // 2)

    @model_validator(mode="after")
    def _fits_together(self) -> TransformerConfig:
        d_k = self.head_width or even_split(self.width, self.heads)
        shared_heads(self.heads, self.key_value_heads)
        if self.positions == "rotary" and d_k % 2:
            raise UsageError(f"rotary positions turn pairs: head width {d_k} is odd; use {d_k + 1}")
        encoded = self.width if self.token_width == self.width else self.width - self.token_width
        if self.positions == "sinusoidal" and encoded % 2:
            raise UsageError(f"sinusoidal positions come in pairs: width {encoded} is odd; use {encoded + 1}")
        if self.token_width <= 0:
            raise UsageError(
                f"position_width {self.position_width} leaves no width for tokens; use less than width {self.width}"
            )
        if self.token_width != self.width and (self.tie_output or self.segments):
            raise UsageError(
                "concatenated positions leave token vectors narrower than the states: "
                "set tie_output=false and segments=0"
            )
        if self.family != "encoder_decoder" and (self.target_vocabulary or self.decoder_layers):
            raise UsageError(f"target_vocabulary and decoder_layers are for encoder_decoder, not {self.family}")
        return self


class RecurrentConfig(Config):
    """Configuration of recurrent networks (F4–F6)."""

    family: Literal["recurrent_decoder", "recurrent_encoder_decoder"]
    vocabulary: Rows
    target_vocabulary: Rows | None = None
    tie_output: bool = True
    width: Width = 512
    layers: Layers = 1
    cell: Literal["gru", "lstm"] = "gru"
    bidirectional: bool = True
    """Whether the encoder also reads the source backwards."""
    attention: Literal["none"] | ScoreName = "bilinear"
    """none: one fixed context vector (the bottleneck of F5); else the attention score function (F6)."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _fits_together(self) -> RecurrentConfig:
        if self.family == "recurrent_encoder_decoder" and self.bidirectional and self.width % 2:
            raise UsageError(f"a bidirectional encoder halves its width: {self.width} is odd; use {self.width + 1}")
        if self.family == "recurrent_decoder" and self.target_vocabulary:
            raise UsageError("target_vocabulary is for recurrent_encoder_decoder, not recurrent_decoder")
        return self


class WordVectorsConfig(Config):
    """Configuration of word vectors (E2)."""

    family: Literal["word_vectors"]
    vocabulary: Rows
    width: Width = 100


ModelConfig = TransformerConfig | RecurrentConfig | WordVectorsConfig

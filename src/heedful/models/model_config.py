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
from heedful.layers.scores import POSITION_SCORES, WITHOUT_CONTENT, ContentScoreName, ScoreName
from heedful.layers.token_projection import ProjectionName
from heedful.models.source_context import ContextName
from heedful.models.sublayer_settings import SETTINGS as SUBLAYER_SETTINGS
from heedful.models.sublayer_settings import SublayerSettings, changes_of, check_sublayers, sublayer_names
from heedful.models.window_network import WindowInputs

PositionName = Literal["none", "sinusoidal", "learned", "rotary", "alibi"]
Task = Literal["masked_token", "next_sentence", "sequence_class", "answer_span", "pooled"]
Pooling = Literal["first", "mean", "last"]
Layers = Annotated[int, Field(gt=0, le=1000)]
MAX_WIDTH = 1 << 20
Width = Annotated[int, Field(gt=0, le=MAX_WIDTH)]
Heads = Annotated[int, Field(gt=0, le=1 << 16)]
Rows = Annotated[int, Field(gt=0, le=(1 << 31) - 1)]
"""Number of rows of a table. These limits keep sizes in bytes, which are products of them, below 2^64."""


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
    feed_forward: Annotated[int, Field(ge=0, le=MAX_WIDTH)] | None = None
    """m; None: 4 · width; 0: no feed-forward network (B7)."""
    activation: ActivationName = "relu"
    gated: bool = False
    bias: bool = True

    score: ScoreName = "scaled_dot"
    score_scale: PositiveFloat | Literal["1/d_k", "learned"] | None = None
    """Factor of the scores, the inverse of the softmax's temperature; None: the score's own, 1/√d_k for scaled_dot."""
    softmax: bool = True
    head_activation: ActivationName = "identity"
    """Activation of what each head reads; with score="position" and softmax=false a feed-forward net over tokens."""
    projection: ProjectionName = "linear"
    """Queries, keys and values by a matrix each, or by a small network each (A10)."""
    window: Rows | None = None
    """Attend to neighbors nearer than this only."""
    encoder_causal: bool = False
    """Causal mask in the encoder (Q2)."""
    decoder_causal: bool = True
    """Causal mask in the decoder; false: every position sees the tokens it is to predict (T1)."""
    exclude_self: bool = False
    """Self-attention without the query's own position (A10)."""
    skip: bool = True
    """Skip-connections (B1)."""
    sublayers: tuple[SublayerSettings, ...] = ()
    """Sub-layers whose skip, norm, heads or feed_forward differ from the model's (B7)."""

    positions: PositionName = "sinusoidal"
    max_length: Rows = 1024
    """Size of tables of positions (`positions="learned"`, scores by position); otherwise the longest text to use."""
    position_combine: Combine = "add"
    position_width: Width | None = None
    """With position_combine="concatenate": the part of the width that encodes the position; None: half."""
    position_layout: SinusoidLayout = "interleaved"
    rotary_base: PositiveFloat = 10_000.0

    norm: NormName = "layer"
    norm_order: NormOrder = "post"
    norm_bias: bool | None = None
    """β of the norms; None: as `bias`."""
    norm_epsilon: PositiveFloat = 1e-5
    final_norm: bool | None = None
    """One more norm after the last block; None: only when pre-norm."""
    embedding_norm: bool = False
    embedding_scale: bool = True
    """Multiply token vectors by √d."""
    segments: int = Field(default=0, ge=0, le=1 << 16)

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
            "feed_forward": 4 * self.width if self.feed_forward is None else self.feed_forward,
            "final_norm": self.norm_order == "pre" if self.final_norm is None else self.final_norm,
            "decoder_layers": self.decoder_layers or self.layers if self.family == "encoder_decoder" else None,
        }

    def sublayer(self, name: str) -> dict[str, Any]:
        """The skip, norm, heads and feed_forward of a sub-layer such as "decoder.0.cross"."""
        settings = self.resolved()
        return {key: settings[key] for key in SUBLAYER_SETTINGS} | changes_of(name, self.sublayers)

    @property
    def has_position_table(self) -> bool:
        """Whether no text may be longer than `max_length`: positions beyond it have no learned values (P2)."""
        return self.positions == "learned" or self.score in POSITION_SCORES

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
        if self.score in WITHOUT_CONTENT:
            self._check_score_without_content()
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
        if self.encoder_causal and self.family == "decoder":
            raise UsageError("encoder_causal is for models with an encoder; a decoder is causal already")
        if not self.decoder_causal and self.family == "encoder":
            raise UsageError("decoder_causal is for models with a decoder; an encoder is causal with encoder_causal")
        if self.norm_bias and self.norm != "layer":
            raise UsageError(f"norm_bias is for norm 'layer': norm '{self.norm}' has no bias")
        self._check_sublayers()
        if self.family != "encoder_decoder" and (self.target_vocabulary or self.decoder_layers):
            raise UsageError(f"target_vocabulary and decoder_layers are for encoder_decoder, not {self.family}")
        return self

    def _check_sublayers(self) -> None:
        if not self.sublayers and self.feed_forward != 0:
            return
        has_two_stacks = self.family == "encoder_decoder"
        stacks = {"encoder": self.layers, "decoder": self.decoder_layers or self.layers} if has_two_stacks else {}
        names = sublayer_names(stacks or {self.family: self.layers}, cross="decoder" if has_two_stacks else None)
        check_sublayers(self.sublayers, names)
        heads = {name: self.sublayer(name)["heads"] for name in names if not name.endswith("feed_forward")}
        for name, number in heads.items():
            if self.key_value_heads is not None and number:
                shared_heads(number, self.key_value_heads)
            if self.positions == "alibi" and number not in (0, self.heads):
                raise UsageError(f"sublayers: alibi has a slope for each of {self.heads} heads; {name} has {number}")
        for layer in dict.fromkeys(name.rpartition(".")[0] for name in names):
            attention = any(number for name, number in heads.items() if name.startswith(f"{layer}."))
            if not attention and not self.sublayer(f"{layer}.feed_forward")["feed_forward"]:
                raise UsageError(
                    f"sublayers: {layer} has neither attention nor a feed-forward network; use fewer layers"
                )

    def _check_score_without_content(self) -> None:
        if self.score_scale is not None:
            raise UsageError(f"score '{self.score}' does not compare queries with keys: leave score_scale out")
        if self.positions == "rotary":
            raise UsageError(
                f"rotary positions turn queries and keys, and score '{self.score}' reads neither: "
                "set positions to sinusoidal, learned, alibi or none"
            )
        if self.score == "uniform" and not self.softmax:
            raise UsageError("score 'uniform' without softmax gives every value the weight 0; use softmax=true")


class RecurrentConfig(Config):
    """Configuration of recurrent networks (F4–F6)."""

    family: Literal["recurrent_decoder", "recurrent_encoder_decoder"]
    vocabulary: Rows
    target_vocabulary: Rows | None = None
    tie_output: bool = True
    width: Width = 512
    layers: Layers = 1
    cell: Literal["gru", "lstm", "window"] = "gru"
    """window: no recurrence, but a feed-forward network over the last tokens (F7)."""
    window: Annotated[int, Field(ge=2, le=1 << 16)] = 5
    """With cell="window": the tokens that are read, the current one included."""
    window_inputs: WindowInputs = "concatenate"
    """With cell="window": how the vectors of the window are joined."""
    bidirectional: bool = True
    """Whether the encoder also reads the source backwards."""
    attention: Literal["none"] | ContentScoreName = "bilinear"
    """none: one fixed context vector (the bottleneck of F5); else the attention score function (F6)."""
    softmax: bool = True
    """Softmax of the attention scores; false: the scores are the weights (A2)."""
    context: ContextName = "last"
    """With attention="none": the one vector for the source, from the encoder's states (F7)."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _fits_together(self) -> RecurrentConfig:
        if self.family == "recurrent_encoder_decoder" and self.bidirectional and self.width % 2:
            raise UsageError(f"a bidirectional encoder halves its width: {self.width} is odd; use {self.width + 1}")
        if self.context != "last" and self.attention != "none":
            raise UsageError(f"context '{self.context}' is for models without attention: set attention='none'")
        if self.cell != "window" and (self.window != 5 or self.window_inputs != "concatenate"):
            raise UsageError(f"window and window_inputs are for cell 'window', not '{self.cell}'")
        if self.attention == "uniform" and not self.softmax:
            raise UsageError("attention 'uniform' without softmax gives every state the weight 0; use softmax=true")
        if self.family == "recurrent_decoder" and self.target_vocabulary:
            raise UsageError("target_vocabulary is for recurrent_encoder_decoder, not recurrent_decoder")
        return self


class WordVectorsConfig(Config):
    """Configuration of word vectors (E2)."""

    family: Literal["word_vectors"]
    vocabulary: Rows
    width: Width = 100
    word_order: bool = True
    """Also predict whether a neighbor stands before or after the word (Song 2018); false: plain word2vec."""


ModelConfig = TransformerConfig | RecurrentConfig | WordVectorsConfig

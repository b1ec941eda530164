"""Base of the three transformer families: modules made from a configuration, and their initialization."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import UsageError
from heedful.layers.block import Block, Stack
from heedful.layers.embedding import Embedding
from heedful.layers.feed_forward import FeedForward
from heedful.layers.kv_cache import KVCache
from heedful.layers.masks import UNMASKED, Mask, causal, subsets
from heedful.layers.multi_head_attention import CrossAttention, MultiHeadAttention, SelfAttention
from heedful.layers.norms import make_norm
from heedful.layers.positions import LearnedPositions, SinusoidalPositions
from heedful.layers.residual import Residual
from heedful.layers.taps import Tapped, at_last_of
from heedful.models.heads import Heads, OutputProjection
from heedful.models.model_config import TransformerConfig
from heedful.shapes import Float
from heedful.text.special_tokens import PAD

ATTENTION_SETTINGS = (
    *("head_width", "value_width", "key_value_heads", "score", "score_scale", "softmax", "head_activation"),
    *("projection", "max_length", "bias"),
)


class Transformer(Tapped):
    """Token tables, heads and configuration; each family adds its stacks of blocks."""

    points = ("logits",)

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Embedding(config.vocabulary, config.token_width)
        self.target_table: nn.Embedding | None = None
        self.heads = Heads(config)

    @property
    def decoder_table(self) -> nn.Embedding:
        """Table of the tokens that a decoder reads and, when tied, predicts."""
        return self.table if self.target_table is None else self.target_table

    @property
    def device(self) -> torch.device:
        return self.table.weight.device

    def apply_head(self, task: str, states: Tensor, lengths: Tensor | None = None) -> Any:
        """Apply the head called `task` to the states: `model.apply_head("masked_token", states)`.

        Logits pass the tap of that name. Those of "answer_span" are returned as two: of starts and of ends.
        """
        result = self.heads(task, states, self.decoder_table.weight, lengths)
        if task == "pooled":
            return result
        logits = self.tap("logits", result)
        return logits.unbind(-1) if task == "answer_span" else logits

    def last_logits(self, states: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch 1 vocabulary"]:
        """The logits after the last of these tokens; taps see them at its position."""
        with at_last_of(states.shape[1]):
            return self.apply_head("next_token", states[:, -1:])

    def output_projection(self, task: str, states: Tensor) -> OutputProjection:
        """`apply_head` for a head over the vocabulary, before its last product: `token_loss` computes it in slices."""
        return self.heads.output_projection(task, states, self.decoder_table.weight)

    def attention_mask(self, *masks: Mask | None) -> Mask:
        """The masks of self-attention combined with the configuration's."""
        combined = Mask(window=self.config.window, exclude_self=self.config.exclude_self)
        for mask in masks:
            combined = combined & (mask or UNMASKED)
        return combined

    @property
    def recomputes(self) -> bool:
        """Whether the states of earlier tokens depend on later ones, so that no decode step may reuse a KV cache."""
        return self.config.family != "encoder" and not self.config.decoder_causal

    def decoder_mask(self, tokens: Tensor, cache: KVCache | None = None) -> Mask:
        """The causal mask, or where the configuration lifts it, the mask of the padding after each text (T3)."""
        if self.config.decoder_causal:
            return self.attention_mask(causal())
        if cache is not None and cache.longest:
            raise UsageError(
                "without the causal mask later tokens change the states of earlier ones: "
                "call cache.rewind() and read the whole text at every step"
            )
        return self.attention_mask(subsets((tokens != PAD)[:, None, None]))

    def check_length(self, end: int, positions: Tensor | None = None) -> None:
        """Raise `UsageError` if a text is longer than a table of positions (P2).

        Rows of packed documents, or of different lengths, may be shorter than `end`. Only then are the `positions`
        themselves read, which needs a GPU synchronization.
        """
        if not self.config.has_position_table or end <= self.config.max_length:
            return
        end = end if positions is None else int(positions.max()) + 1
        if end > self.config.max_length:
            learned = self.config.positions == "learned"
            table, remedy = ("learned position table", "with sinusoidal, rotary or alibi positions")
            if not learned:
                table, remedy = ("table of position scores", "another score")
            raise UsageError(
                f"a text of {end} tokens is longer than the {table} of {self.config.max_length}; "
                f"shorten it, or train with a larger max_length or {remedy}"
            )


def make_embedding(config: TransformerConfig) -> Embedding:
    """The embedding of one stack: tokens, positions, segments, norm and dropout."""
    position_width = config.width if config.position_combine == "add" else config.width - config.token_width
    positions: SinusoidalPositions | LearnedPositions | None = None
    if config.positions == "sinusoidal":
        positions = SinusoidalPositions(position_width, layout=config.position_layout)
    elif config.positions == "learned":
        positions = LearnedPositions(config.max_length, position_width)
    return Embedding(
        config.token_width,
        positions=positions,
        combine=config.position_combine,
        scale=config.embedding_scale,
        segments=config.segments,
        norm=_norm(config) if config.embedding_norm else None,
        dropout=config.dropout,
    )


def make_stack(config: TransformerConfig, name: str, layers: int, *, cross: bool = False) -> Stack:
    """The encoder or decoder: `name` is the stack's in the names of its sub-layers."""
    settings = config.resolved()
    attention = {name: settings[name] for name in ATTENTION_SETTINGS}
    attention |= {"dropout": config.attention_dropout, "projection_activation": config.activation}
    if config.key_value_heads is None:
        attention["key_value_heads"] = None  # as many as the sub-layer has heads
    feed_forward = {name: settings[name] for name in ("activation", "gated", "bias")}

    def residual(sublayer: dict[str, Any]) -> Residual:
        return Residual(
            config.width,
            order=config.norm_order,
            norm=sublayer["norm"],
            epsilon=config.norm_epsilon,
            bias=_norm_bias(config),
            dropout=config.dropout,
            skip=sublayer["skip"],
        )

    def block(layer: int) -> Block:
        sublayers = {kind: config.sublayer(f"{name}.{layer}.{kind}") for kind in ("attention", "cross", "feed_forward")}
        heads, cross_heads = sublayers["attention"]["heads"], sublayers["cross"]["heads"] if cross else 0
        hidden = sublayers["feed_forward"]["feed_forward"]
        return Block(
            SelfAttention(config.width, heads, **attention) if heads else None,
            FeedForward(config.width, hidden, **feed_forward) if hidden else None,
            lambda kind: residual(sublayers[kind]),
            CrossAttention(config.width, cross_heads, **attention) if cross_heads else None,
        )

    return Stack(
        [block(layer) for layer in range(layers)],
        norm=_norm(config) if settings["final_norm"] and config.norm != "none" else None,
        rotary_base=config.rotary_base if config.positions == "rotary" else None,
        alibi=config.positions == "alibi",
    )


def _norm(config: TransformerConfig) -> nn.Module:
    return make_norm(config.norm, config.width, epsilon=config.norm_epsilon, bias=_norm_bias(config))


def _norm_bias(config: TransformerConfig) -> bool:
    return config.bias if config.norm_bias is None else config.norm_bias


@torch.no_grad()
def initialize(model: nn.Module) -> None:
    """Initialize every weight so that activations and gradients keep their scale through the layers (B6).

    Matrices: Glorot 2010, which keeps the variance of activations and gradients near 1. W_q, W_k, W_v are drawn as the
    one matrix they are stored as, which makes them smaller by √2 and attention flatter at first. In a pre-norm stack
    each of the 2L sub-layers adds to the residual stream, so their output matrices start smaller by √(2L)
    (Radford 2019). Embedding tables: variance 1/d, so that √d · E and the logits of a normalized state both have
    variance 1. Biases 0, gains 1.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, nn.RNNBase):
            pass  # initialized by the module around it
        elif callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    for stack in model.modules():
        if isinstance(stack, Stack) and any(isinstance(r, Residual) and r.order == "pre" for r in stack.modules()):
            sublayers = [part for part in stack.modules() if isinstance(part, MultiHeadAttention | FeedForward)]
            for part in sublayers:
                last = part.output if isinstance(part, MultiHeadAttention) else part.outward
                last.weight.div_(math.sqrt(len(sublayers)))

"""What the three transformer families share: modules made from a configuration, and their initialization."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import UsageError
from heedful.layers.block import Block, Stack
from heedful.layers.embedding import Embedding
from heedful.layers.feed_forward import FeedForward
from heedful.layers.masks import UNMASKED, Mask
from heedful.layers.multi_head_attention import CrossAttention, MultiHeadAttention, SelfAttention
from heedful.layers.norms import make_norm
from heedful.layers.positions import LearnedPositions, SinusoidalPositions
from heedful.layers.residual import Residual
from heedful.models.heads import Heads, OutputProjection
from heedful.models.model_config import TransformerConfig


class Transformer(nn.Module):
    """Token tables, heads and configuration; each family adds its stacks of blocks."""

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
        """Apply the head called `task` to the states: `model.apply_head("masked_token", states)`."""
        return self.heads(task, states, self.decoder_table.weight, lengths)

    def output_projection(self, task: str, states: Tensor) -> OutputProjection:
        """The same for a vocabulary-sized head before its last product, which `token_loss` computes in slices."""
        return self.heads.output_projection(task, states, self.decoder_table.weight)

    def attention_mask(self, *masks: Mask | None) -> Mask:
        """The masks combined with the configuration's attention window."""
        combined = Mask(window=self.config.window)
        for mask in masks:
            combined = combined & (mask or UNMASKED)
        return combined

    def check_length(self, end: int, positions: Tensor | None = None) -> None:
        """Raise `UsageError` if a text is longer than the learned position table (P2).

        Rows of packed documents, or of different lengths, may be shorter than `end`. Only then are the `positions`
        themselves read, which needs a GPU synchronization.
        """
        if self.config.positions != "learned" or end <= self.config.max_length:
            return
        end = end if positions is None else int(positions.max()) + 1
        if end > self.config.max_length:
            raise UsageError(
                f"a text of {end} tokens is longer than the learned position table of {self.config.max_length}; "
                "shorten it, or train with a larger max_length or with sinusoidal, rotary or alibi positions"
            )


def make_embedding(config: TransformerConfig) -> Embedding:
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


def make_stack(config: TransformerConfig, layers: int, *, cross: bool = False) -> Stack:
    settings = config.resolved()
    names = ("head_width", "value_width", "key_value_heads", "score", "softmax", "bias")
    attention = {name: settings[name] for name in names} | {"dropout": config.attention_dropout}
    feed_forward = {name: settings[name] for name in ("activation", "gated", "bias")}

    def residual() -> Residual:
        return Residual(
            config.width,
            order=config.norm_order,
            norm=config.norm,
            epsilon=config.norm_epsilon,
            bias=config.bias,
            dropout=config.dropout,
            skip=config.skip,
        )

    def block() -> Block:
        return Block(
            SelfAttention(config.width, config.heads, **attention),
            FeedForward(config.width, settings["feed_forward"], **feed_forward),
            residual,
            CrossAttention(config.width, config.heads, **attention) if cross else None,
        )

    return Stack(
        [block() for _ in range(layers)],
        norm=_norm(config) if settings["final_norm"] else None,
        rotary_base=config.rotary_base if config.positions == "rotary" else None,
        alibi=config.positions == "alibi",
    )


def _norm(config: TransformerConfig) -> nn.Module:
    return make_norm(config.norm, config.width, epsilon=config.norm_epsilon, bias=config.bias)


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

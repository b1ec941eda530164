"""What the three transformer families share: parts made from a configuration, and how they start out."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import UsageError
from heedful.layers.attention import CrossAttention, MultiHeadAttention, SelfAttention
from heedful.layers.block import Block, Stack
from heedful.layers.embedding import Embedding
from heedful.layers.feed_forward import FeedForward
from heedful.layers.masks import UNMASKED, Mask
from heedful.layers.norms import make_norm
from heedful.layers.positions import LearnedPositions, SinusoidalPositions
from heedful.layers.residual import Residual
from heedful.models.heads import Heads, OutputProjection
from heedful.models.model_config import TransformerConfig


class Transformer(nn.Module):
    """A token table, heads, and the configuration they came from; each family adds its stacks."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Embedding(config.vocabulary, config.token_width)
        self.heads = Heads(config)

    @property
    def output_table(self) -> Tensor:
        """The table a tied output reads."""
        return self.table.weight

    def apply_head(self, task: str, states: Tensor, lengths: Tensor | None = None) -> Any:
        """What the head called `task` makes of the states: `model.apply_head("masked_token", states)`."""
        return self.heads(task, states, self.output_table, lengths)

    def output_projection(self, task: str, states: Tensor) -> OutputProjection:
        """The same for a head that scores every word, with the last product left open: see `token_loss`."""
        return self.heads.output_projection(task, states, self.output_table)

    def attention_mask(self, *masks: Mask | None) -> Mask:
        """The given masks together with the configuration's window."""
        joined = Mask(window=self.config.window)
        for mask in masks:
            joined = joined & (mask or UNMASKED)
        return joined

    def check_length(self, end: int, positions: Tensor | None = None) -> None:
        """A learned table ends somewhere (P2); say so before an index does.

        Rows of packed documents, or of different lengths, may reach less far than `end` says. Only then
        are the `positions` themselves looked at, because looking makes a GPU wait.
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
    place = config.width if config.position_combine == "add" else config.width - config.token_width
    positions: SinusoidalPositions | LearnedPositions | None = None
    if config.positions == "sinusoidal":
        positions = SinusoidalPositions(place, layout=config.position_layout)
    elif config.positions == "learned":
        positions = LearnedPositions(config.max_length, place)
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
def initialise(model: nn.Module) -> None:
    """Draw every weight afresh, so that signals neither fade nor grow on the way (B6).

    Matrices: Glorot 2010, which keeps the variance of signals forward and gradients backward near 1.
    W_q, W_k, W_v are drawn as the one matrix they are stored as, which makes them smaller by √2 and
    attention flatter at first. In a pre-norm stack each of the 2L sub-layers adds to the stream, so
    those that write to it start smaller by √(2L) (Radford 2019). Vectors in tables: variance 1/d, so that
    √d · E and logits of a normalised state both have variance 1. Biases 0, gains 1.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, nn.RNNBase):
            pass  # the module around it has drawn its matrices
        elif callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    for stack in model.modules():
        if isinstance(stack, Stack) and any(isinstance(r, Residual) and r.order == "pre" for r in stack.modules()):
            writers = [part for part in stack.modules() if isinstance(part, MultiHeadAttention | FeedForward)]
            for part in writers:
                last = part.output if isinstance(part, MultiHeadAttention) else part.outward
                last.weight.div_(math.sqrt(len(writers)))

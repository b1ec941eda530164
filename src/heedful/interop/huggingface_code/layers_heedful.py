"""Layers of transformers trained with heedful, in plain PyTorch; modeling_heedful.py builds models of them.

Names of modules and weights are heedful's. True in a mask = may attend.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import EncoderDecoderCache

from .configuration_heedful import HeedfulConfig

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": nn.GELU(approximate="tanh"), "silu": F.silu}


def angles(positions: Tensor, width: int, base: float = 10_000.0) -> Tensor:
    """i · base^(−2j/d) for each position i and pair of features j."""
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    return positions[..., None].float() * torch.exp(pairs * (-math.log(base) / width))


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate each pair (x_j, x_{j+d/2}) by its position's angle (Su 2021)."""
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)


def alibi_slopes(heads: int, device: torch.device) -> Tensor:
    """2^(−8/H), 2^(−16/H), … (Press 2022)."""
    power = 1 << (heads.bit_length() - 1)
    head = torch.arange(heads, device=device)
    return torch.exp2(-torch.where(head < power, 8 * (head + 1), 8 * (head - power) + 4) / power)


def make_norm(config: HeedfulConfig, bias: bool = True) -> nn.Module:
    if config.norm == "rms":
        return nn.RMSNorm(config.width, eps=config.norm_epsilon)
    return nn.LayerNorm(config.width, eps=config.norm_epsilon, bias=bias)


class HeedfulEmbedding(nn.Module):
    """dropout(norm(√d · E[tokens] + segment + position)); the token table is an argument, because stacks share it."""

    def __init__(self, config: HeedfulConfig, segments: int) -> None:
        super().__init__()
        self.config = config
        self.scale = math.sqrt(config.width) if config.embedding_scale else 1.0
        learned = config.positions == "learned"
        table = {"table": nn.Embedding(config.max_position_embeddings, config.width)} if learned else {}
        self.positions = nn.ModuleDict(table)
        self.segments = nn.Embedding(segments, config.width) if segments else None
        self.norm = make_norm(config, config.bias) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, table: nn.Embedding, tokens: Tensor, positions: Tensor, segments: Tensor | None = None) -> Tensor:
        x = table(tokens) * self.scale
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(tokens) if segments is None else segments)
        if self.config.positions == "learned":
            x = x + self.positions["table"](positions)
        elif self.config.positions == "sinusoidal":
            angle = angles(positions, self.config.width)
            sinusoid = torch.stack([angle.sin(), angle.cos()], dim=-1)  # … pairs 2
            halves = self.config.position_layout == "halves"
            x = x + (sinusoid.transpose(-1, -2) if halves else sinusoid).flatten(-2).to(x.dtype)
        return self.dropout(self.norm(x))


class HeedfulAttention(nn.Module):
    """Self-attention, or cross-attention to a memory: softmax(Q Kᵀ / √d_k) V, in several heads."""

    def __init__(self, config: HeedfulConfig, layer: int, cross: bool) -> None:
        super().__init__()
        self.layer, self.cross, self.heads, self.groups = layer, cross, config.heads, config.key_value_heads
        self.sizes = [self.heads * config.head_width, self.groups * config.head_width, self.groups * config.value_width]
        if cross:
            self.query = nn.Linear(config.width, self.sizes[0], bias=config.bias)
            self.key_value = nn.Linear(config.width, sum(self.sizes[1:]), bias=config.bias)
        else:
            self.query_key_value = nn.Linear(config.width, sum(self.sizes), bias=config.bias)
        self.output = nn.Linear(self.heads * config.value_width, config.width, bias=config.bias)
        self.scale = 1.0 if config.score == "dot" else None
        self.dropout = config.attention_dropout

    def forward(self, x: Tensor, mask: Tensor, angle: Tensor | None, cache: Any, memory: Tensor | None) -> Tensor:
        if self.cross:
            query, (key, value) = self.split(self.query(x), self.heads), self.read_memory(memory, cache)
        else:
            q, k, v = self.query_key_value(x).split(self.sizes, dim=-1)
            query, key, value = self.split(q, self.heads), self.split(k, self.groups), self.split(v, self.groups)
            if angle is not None:
                query, key = rotate(query, angle), rotate(key, angle)
            if cache is not None:
                cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
                key, value = cache.update(key, value, self.layer)
        heads = F.scaled_dot_product_attention(
            query, key, value, mask.to(query.dtype) if mask.is_floating_point() else mask, scale=self.scale,
            dropout_p=self.dropout if self.training else 0.0, enable_gqa=self.groups != self.heads,
        )  # fmt: skip
        return self.output(heads.transpose(1, 2).flatten(2))

    def read_memory(self, memory: Tensor, cache: EncoderDecoderCache | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory: the same at every decoding step, so computed once."""
        if cache is not None and cache.is_updated.get(self.layer):
            layer = cache.cross_attention_cache.layers[self.layer]
            return layer.keys, layer.values
        key, value = (self.split(part, self.groups) for part in self.key_value(memory).split(self.sizes[1:], dim=-1))
        if cache is not None:
            key, value = cache.cross_attention_cache.update(key, value, self.layer)
            cache.is_updated[self.layer] = True
        return key, value

    @staticmethod
    def split(x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class HeedfulFeedForward(nn.Module):
    """act(x W_1) W_2, or (act(x W_g) ⊙ x W_1) W_2 where gated."""

    def __init__(self, config: HeedfulConfig) -> None:
        super().__init__()
        self.gated, self.activation = config.gated, ACTIVATIONS[config.activation]
        self.inward = nn.Linear(config.width, config.feed_forward * (2 if config.gated else 1), bias=config.bias)
        self.outward = nn.Linear(config.feed_forward, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self.outward(self.activation(self.inward(x)))
        gate, inner = self.inward(x).chunk(2, dim=-1)
        return self.outward(self.activation(gate) * inner)


class HeedfulResidual(nn.Module):
    """pre: x + f(norm(x)); post: norm(x + f(x))."""

    def __init__(self, config: HeedfulConfig) -> None:
        super().__init__()
        self.pre = config.norm_order == "pre"
        self.norm = make_norm(config, config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, f: Any) -> Tensor:
        return x + self.dropout(f(self.norm(x))) if self.pre else self.norm(x + self.dropout(f(x)))


class HeedfulBlock(nn.Module):
    """Self-attention, then (in an encoder-decoder's decoder) cross-attention, then feed-forward."""

    def __init__(self, config: HeedfulConfig, layer: int, cross: bool) -> None:
        super().__init__()
        self.attention = HeedfulAttention(config, layer, cross=False)
        self.cross = HeedfulAttention(config, layer, cross=True) if cross else None
        self.feed_forward = HeedfulFeedForward(config)
        self.residual = nn.ModuleList(HeedfulResidual(config) for _ in range(3 if cross else 2))

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        angle: Tensor | None,
        cache: Any,
        memory: Tensor | None,
        memory_mask: Tensor | None,
    ) -> Tensor:
        x = self.residual[0](x, lambda x: self.attention(x, mask, angle, cache, None))
        if self.cross is not None:
            x = self.residual[1](x, lambda x: self.cross(x, memory_mask, None, cache, memory))
        return self.residual[-1](x, self.feed_forward)


class HeedfulStack(nn.Module):
    """Blocks, then one last norm where they are pre-norm."""

    main_input_name = "input_ids"  # what `generate` calls the input of an encoder

    def __init__(self, config: HeedfulConfig, layers: int, causal: bool, cross: bool = False) -> None:
        super().__init__()
        self.config, self.causal = config, causal
        self.blocks = nn.ModuleList(HeedfulBlock(config, layer, cross) for layer in range(layers))
        self.norm = make_norm(config, config.bias) if config.final_norm else nn.Identity()

    def forward(
        self,
        x: Tensor,
        real: Tensor,
        positions: Tensor,
        cache: Any = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        mask = self.mask(x.shape[1], real)
        rotary = self.config.positions == "rotary"
        angle = angles(positions, self.config.head_width, self.config.rotary_base)[:, None] if rotary else None
        for block in self.blocks:
            x = block(x, mask, angle, cache, memory, memory_mask)
        return self.norm(x)

    def mask(self, queries: int, real: Tensor) -> Tensor:
        """The keys that each query may attend to, of which the queries are the last; with ALiBi, a bias."""
        keys = real.shape[1]
        key = torch.arange(keys, device=real.device)
        distance = key[keys - queries :, None] - key
        allowed = real[:, None, None, :] & (distance >= 0 if self.causal else distance == distance)
        if self.config.window:
            allowed = allowed & (distance.abs() < self.config.window)
        allowed = allowed | ~allowed.any(-1, keepdim=True)  # padding attends to anything: a softmax needs a key
        if self.config.positions != "alibi":
            return allowed
        bias = -alibi_slopes(self.config.heads, real.device)[:, None, None] * distance.abs()
        return bias.expand(len(real), -1, -1, -1).masked_fill(~allowed, -torch.inf)


class HeedfulTokenLogits(nn.Module):
    """Logits of every token: the product with the token table, or with a table of their own."""

    def __init__(self, config: HeedfulConfig, bias: bool) -> None:
        super().__init__()
        weight = torch.zeros(config.vocab_size, config.width)
        self.weight = None if config.tie_output else nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if bias else None

    def forward(self, states: Tensor, table: nn.Embedding) -> Tensor:
        return F.linear(states, table.weight if self.weight is None else self.weight, self.bias)


class HeedfulMaskedToken(nn.Module):
    """Logits of a masked token: a dense layer, a norm, then the token table (Devlin 2019)."""

    def __init__(self, config: HeedfulConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = make_norm(config)
        self.tokens = HeedfulTokenLogits(config, bias=True)

    def forward(self, states: Tensor, table: nn.Embedding) -> Tensor:
        return self.tokens(self.norm(self.activation(self.dense(states))), table)


class HeedfulPooler(nn.Module):
    """A text's vector: its first state through a dense layer, the mean of its states, or its last state."""

    def __init__(self, config: HeedfulConfig) -> None:
        super().__init__()
        self.pooling = config.pooling
        self.dense = nn.Linear(config.width, config.width) if config.pooling == "first" else None

    def forward(self, states: Tensor, real: Tensor) -> Tensor:
        if self.pooling == "mean":
            return (states * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
        last = torch.arange(real.shape[1], device=real.device) * real
        index = real.int().argmax(1) if self.dense is not None else last.argmax(1)
        state = states[torch.arange(len(states), device=states.device), index]
        return state if self.dense is None else torch.tanh(self.dense(state))


class HeedfulHeads(nn.ModuleDict):
    """The heads of a configuration."""

    def __init__(self, config: HeedfulConfig) -> None:
        super().__init__()
        if config.family != "encoder":
            self["next_token"] = HeedfulTokenLogits(config, bias=config.output_bias)
        if "masked_token" in config.tasks:
            self["masked_token"] = HeedfulMaskedToken(config)
        if {"pooled", "next_sentence", "sequence_class"} & {*config.tasks}:
            self["pooled"] = HeedfulPooler(config)
        if "next_sentence" in config.tasks:
            self["next_sentence"] = nn.ModuleDict({"follows": nn.Linear(config.width, 2)})
        if "sequence_class" in config.tasks:
            self["sequence_class"] = nn.ModuleDict({"classes": nn.Linear(config.width, config.num_labels)})
        if "answer_span" in config.tasks:
            self["answer_span"] = nn.ModuleDict({"ends": nn.Linear(config.width, 2)})

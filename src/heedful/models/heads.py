"""Task heads: small modules from the last block's states to logits (E3, T4, T5).

Decoders always have `NextTokenHead`; the others are chosen by `tasks` in the configuration.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heedful.errors import UsageError
from heedful.layers.activations import ACTIVATIONS
from heedful.layers.norms import make_norm
from heedful.models.model_config import Pooling, TransformerConfig
from heedful.shapes import Float, Int

VOCABULARY_MULTIPLE = 64
"""Tensor cores want multiples of this: a vocabulary of 50,257 takes six times as long as one of 50,304."""


class OutputProjection(NamedTuple):
    """The factors of the logits U Wᵀ + b, not yet multiplied, so that a loss can compute them a slice at a time."""

    states: Float[Tensor, "*axes width"]
    weight: Float[Tensor, "vocabulary width"]
    bias: Float[Tensor, " vocabulary"] | None

    def padded(self) -> OutputProjection:
        """This projection with rows of zeros appended, up to a multiple of `VOCABULARY_MULTIPLE`."""
        missing = -len(self.weight) % VOCABULARY_MULTIPLE
        if not missing:
            return self
        bias = None if self.bias is None else F.pad(self.bias, (0, missing))
        return OutputProjection(self.states, F.pad(self.weight, (0, 0, 0, missing)), bias)


class NextTokenHead(nn.Module):
    """P(x_{N+1} = w | x_{1:N}) ∝ exp(T(w) · U(x_{1:N}))        Vaswani 2017, 3.4 · E3

    T is the input table when tied (Press & Wolf 2017), or a separate one. A tied table is passed at every call rather
    than registered twice, so that each weight has one name in files and across devices. (With a separate T the input
    table is not used, and may be narrower: concatenated positions, P3.)
    """

    def __init__(self, width: int, vocabulary: int, *, tied: bool, bias: bool = False) -> None:
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(vocabulary, width))
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A separate table is initialized like an input table: variance 1/d (see `initialize`)."""
        if self.weight is not None:
            nn.init.normal_(self.weight, std=self.weight.shape[-1] ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def output_projection(
        self, states: Float[Tensor, "*axes width"], table: Float[Tensor, "vocabulary token_width"]
    ) -> OutputProjection:
        return OutputProjection(states, table if self.weight is None else self.weight, self.bias)


class MaskedTokenHead(nn.Module):
    """Logits of a masked token: a dense layer, a norm, then the output table        Devlin 2019, 3.1 · T4"""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = make_norm(config.norm, config.width, epsilon=config.norm_epsilon)
        self.tokens = NextTokenHead(config.width, config.vocabulary, tied=config.tie_output, bias=True)

    def output_projection(
        self, states: Float[Tensor, "*axes width"], table: Float[Tensor, "vocabulary token_width"]
    ) -> OutputProjection:
        return self.tokens.output_projection(self.norm(self.activation(self.dense(states))), table)


class Pooler(nn.Module):
    """Pool a text's states into one vector.

    first  tanh(W x_1 + b): the first token's state, as in Devlin 2019
    mean   the mean over real tokens, for sentence vectors (Reimers & Gurevych 2019)
    last   the last real token's state, which in a causal model attends to the whole text (Radford 2018)
    """

    def __init__(self, width: int, pooling: Pooling) -> None:
        super().__init__()
        self.pooling = pooling
        self.dense = nn.Linear(width, width) if pooling == "first" else None

    def forward(
        self, states: Float[Tensor, "batch tokens width"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch width"]:
        if states.shape[1] == 0:  # a text without tokens gets one zero state
            states = states.new_zeros(len(states), 1, states.shape[2])
        if self.dense is not None:
            return torch.tanh(self.dense(states[:, 0]))
        if self.pooling == "mean":
            return mean_pool(states, lengths)
        last = states.new_full((len(states),), states.shape[1], dtype=torch.long) if lengths is None else lengths
        return states[torch.arange(len(states), device=states.device), (last - 1).clamp(min=0)]


def mean_pool(
    states: Float[Tensor, "batch tokens width"], lengths: Int[Tensor, " batch"] | None = None
) -> Float[Tensor, "batch width"]:
    """The mean state over each text's real tokens; zeros for a text without any."""
    if lengths is None:
        return states.mean(1)
    real = (torch.arange(states.shape[1], device=states.device) < lengths[:, None])[..., None]
    return (states * real).sum(1) / lengths.clamp(min=1)[:, None]


class SequenceClassHead(nn.Module):
    """Class logits of a text, from its pooled vector        Devlin 2019, 4.1 · T5"""

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classes = nn.Linear(width, classes)

    def forward(self, pooled: Float[Tensor, "batch width"]) -> Float[Tensor, "batch classes"]:
        return self.classes(self.dropout(pooled))


class NextSentenceHead(nn.Module):
    """Whether the second text followed the first (class 0) or was drawn at random (1)        Devlin 2019, 3.1 · T4"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.follows = nn.Linear(width, 2)

    def forward(self, pooled: Float[Tensor, "batch width"]) -> Float[Tensor, "batch 2"]:
        return self.follows(pooled)


class AnswerSpanHead(nn.Module):
    """Start and end logits of an answer for every token        Devlin 2019, 4.2 · T5"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ends = nn.Linear(width, 2)

    def forward(self, states: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens 2"]:
        return self.ends(states)


class Heads(nn.ModuleDict):
    """The heads of a configuration; `pooled` is added for the tasks that need a pooled vector."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width, tasks = config.width, set(config.tasks)
        if config.family != "encoder":
            vocabulary = config.target_vocabulary or config.vocabulary
            self["next_token"] = NextTokenHead(width, vocabulary, tied=config.tie_output, bias=config.output_bias)
        if "masked_token" in tasks:
            self["masked_token"] = MaskedTokenHead(config)
        if tasks & {"pooled", "next_sentence", "sequence_class"}:
            self["pooled"] = Pooler(width, config.pooling)
        if "next_sentence" in tasks:
            self["next_sentence"] = NextSentenceHead(width)
        if "sequence_class" in tasks:
            self["sequence_class"] = SequenceClassHead(width, config.classes, config.dropout)
        if "answer_span" in tasks:
            self["answer_span"] = AnswerSpanHead(width)

    def forward(self, task: str, states: Tensor, table: Tensor, lengths: Tensor | None = None) -> Any:
        """Apply the head called `task` to the states."""
        self.require(task)
        if task in ("next_token", "masked_token"):
            return F.linear(*self.output_projection(task, states, table))
        if task == "pooled":
            return self[task](states, lengths)
        if task in ("next_sentence", "sequence_class"):
            return self[task](self["pooled"](states, lengths))
        return self[task](states)

    def output_projection(self, task: str, states: Tensor, table: Tensor) -> OutputProjection:
        """The states, weight and bias of the last product of a head with logits for every token of the vocabulary."""
        self.require(task)
        head: Any = self[task]
        return head.output_projection(states, table)

    def require(self, task: str) -> None:
        if task not in self:
            raise UsageError(f"this model has no '{task}' head; it has {', '.join(self) or 'none'}")

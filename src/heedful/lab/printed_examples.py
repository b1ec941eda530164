"""The worked numbers and the errata of the lecture notes, recomputed by the library's functions when displayed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.layers.attention import attention, attention_weights
from heedful.layers.block import Block
from heedful.layers.embedding import Embedding
from heedful.layers.feed_forward import FeedForward
from heedful.layers.masks import causal
from heedful.layers.multi_head_attention import SelfAttention
from heedful.layers.positions import SinusoidalPositions
from heedful.layers.residual import Residual
from heedful.layers.scores import dot, scaled_dot
from heedful.layers.taps import record

HELP_ME = torch.tensor([[6.0, 4.0], [3.0, 8.0]])
"""Scores of "help me!"; d_k = 16."""
MONEY = torch.tensor([[0.41, 0.08, 0.51, 0.87]])
"""The embedding of "money", the token at position 3."""
SHOW_ME_THE_MONEY = torch.tensor(
    [[0.61, 0.18, 0.04, 0.17], [0.16, 0.57, 0.08, 0.19], [0.03, 0.07, 0.74, 0.16], [0.17, 0.23, 0.12, 0.48]]
)
"""S, the printed attention weights of "show me the money"."""
NOT_ON_YOUR_LIFE = torch.tensor(
    [
        [16.2, 7.7, 2.0, 4.6, 3.1, 8.9],
        [3.2, 21.5, 6.1, 8.4, 8.1, 5.2],
        [1.9, 4.3, 18.7, 6.5, 7.2, 3.3],
        [2.7, 4.1, 7.6, 22.3, 9.0, 3.8],
        [4.4, 5.8, 6.9, 5.6, 24.5, 4.7],
        [4.0, 3.9, 6.7, 7.3, 6.1, 16.8],
    ]
)
"""Scores of "<start> not on your life <end>"; d_k = 64."""
PRINTED_WEIGHTS = torch.tensor(
    [
        [1.00, 0.00, 0.00, 0.00, 0.00, 0.00],
        [0.13, 0.87, 0.00, 0.00, 0.00, 0.00],
        [0.06, 0.16, 0.78, 0.00, 0.00, 0.00],
        [0.03, 0.06, 0.11, 0.80, 0.00, 0.00],
        [0.05, 0.06, 0.09, 0.06, 0.74, 0.00],
        [0.02, 0.04, 0.14, 0.15, 0.13, 0.52],
    ]
)
"""The weights that the notes print for these scores."""


@dataclass(frozen=True)
class WorkedNumber:
    """One line of an example: its name, the value printed in the notes, and the value computed by the library."""

    quantity: str
    printed: str
    computed: str

    @property
    def agrees(self) -> bool:
        """Whether the printed value equals the computed one."""
        return self.printed == self.computed


@dataclass(frozen=True)
class PrintedExample:
    """An example or erratum of the notes."""

    title: str
    text: str
    numbers: tuple[WorkedNumber, ...]


def printed_examples() -> list[PrintedExample]:
    """All worked numbers, then all errata, computed now."""
    return [
        help_me_example(),
        money_example(),
        causal_mask_example(),
        radians_erratum(),
        weight_table_erratum(),
        value_index_erratum(),
        frequency_erratum(),
        two_z_erratum(),
    ]


def vector_text(vector: Tensor) -> str:
    """Format numbers with two decimals, as in the notes."""
    return ", ".join(f"{number + 0.0:.2f}" for number in (vector * 100).round().div(100).flatten().tolist())


def queries_and_keys(scores: Tensor, d_k: int) -> tuple[Tensor, Tensor]:
    """Queries and keys of width d_k whose products q_i·k_j are these scores."""
    queries, keys = scores.shape
    query, key = torch.zeros(queries, d_k), torch.zeros(keys, d_k)
    query[:, :keys], key[:, :keys] = scores, torch.eye(keys)
    return query, key


def help_me_example() -> PrintedExample:
    """Two words attend to each other: scaled scores and weights."""
    query, key = queries_and_keys(HELP_ME, 16)
    scaled, weights = scaled_dot(query, key), attention_weights(query, key)
    rows = zip(
        ("help", "me"), (("1.50, 1.00", "0.62, 0.38"), ("0.75, 2.00", "0.22, 0.78")), scaled, weights, strict=True
    )
    numbers = []
    for word, (scores, shares), row, weight in rows:
        numbers += [
            WorkedNumber(f"{word}: scores / √16", scores, vector_text(row)),
            WorkedNumber(f"{word}: weights", shares, vector_text(weight)),
        ]
    return PrintedExample("Number 1: help me!", "Scores 6, 4 and 3, 8 with d_k = 16.", tuple(numbers))


def position_encoding(index: int, width: int = 4) -> Tensor:
    """The sinusoidal encoding of one position."""
    encoding: Tensor = SinusoidalPositions(width)(torch.tensor([[index]]))[0, 0]
    return encoding


def offset_error(index: int, offset: int, width: int = 4) -> Tensor:
    """M PE_i − PE_{i+δ}: a rotation of each pair by δ ω_j takes the encoding of i to that of i + δ        P1"""
    angles = offset * 10000.0 ** (-torch.arange(0, width, 2) / width)
    sine, cosine = position_encoding(index).view(-1, 2).unbind(1)
    rotated = torch.stack(
        [angles.cos() * sine + angles.sin() * cosine, angles.cos() * cosine - angles.sin() * sine], dim=1
    )
    return rotated.flatten() - position_encoding(index + offset)


def money_example() -> PrintedExample:
    """A sinusoidal position encoding added to an embedding."""
    table = nn.Embedding(1, 4)
    table.weight.data.copy_(MONEY)
    embedding = Embedding(4, positions=SinusoidalPositions(4))
    money = embedding(table, torch.tensor([[0]]), torch.tensor([[3]]))
    return PrintedExample(
        "Number 2: show me the money",
        "Four tokens of width 4; money, at position 3, has the embedding 0.41, 0.08, 0.51, 0.87.",
        (
            WorkedNumber("PE_0", "0.00, 1.00, 0.00, 1.00", vector_text(position_encoding(0))),
            WorkedNumber("M_2 PE_1 − PE_3, equation 4", "0.00, 0.00, 0.00, 0.00", vector_text(offset_error(1, 2))),
            WorkedNumber("sums of the rows of S", ", ".join(["1.00"] * 4), vector_text(SHOW_ME_THE_MONEY.sum(1))),
            WorkedNumber("money + PE_3", "0.46, 1.08, 0.51, 1.87", vector_text(money)),
        ),
    )


def masked_weights() -> Tensor:
    """The weights of "not on your life" under the causal mask."""
    return attention_weights(*queries_and_keys(NOT_ON_YOUR_LIFE, 64), causal())


def causal_mask_example() -> PrintedExample:
    """Weights under the causal mask: nothing above the diagonal, rows that sum to 1."""
    weights = masked_weights()
    return PrintedExample(
        "Number 3: not on your life",
        "The 6 × 6 table of scores with d_k = 64 under the causal mask.",
        (
            WorkedNumber("largest weight above the diagonal", "0.00", vector_text(weights.triu(1).max())),
            WorkedNumber("sum of every row", ", ".join(["1.00"] * 6), vector_text(weights.sum(-1))),
            WorkedNumber("weights of not", "0.13, 0.87, 0.00, 0.00, 0.00, 0.00", vector_text(weights[1])),
        ),
    )


def radians_erratum() -> PrintedExample:
    """The position encoding takes radians."""
    degree = torch.tensor(math.sin(math.radians(1)))
    return PrintedExample(
        "Erratum 1: radians, not degrees",
        f"The notes print sin(1) = 0.02, the sine of one degree ({vector_text(degree)}). PE_1 to PE_3 inherit it.",
        (
            WorkedNumber("sin(1)", "0.02", vector_text(torch.tensor(1.0).sin())),
            WorkedNumber("PE_1", "0.02, 1.00, 0.00, 1.00", vector_text(position_encoding(1))),
            WorkedNumber("PE_2", "0.04, 1.00, 0.00, 1.00", vector_text(position_encoding(2))),
            WorkedNumber("PE_3", "0.05, 1.00, 0.00, 1.00", vector_text(position_encoding(3))),
        ),
    )


def weight_table_erratum() -> PrintedExample:
    """The printed weights do not follow from the printed scores."""
    query, key = queries_and_keys(NOT_ON_YOUR_LIFE, 6)
    scales = torch.logspace(-2, 0.5, 500).tolist()
    errors = [(attention_weights(s * query, key, causal(), score=dot) - PRINTED_WEIGHTS).abs().max() for s in scales]
    error = (masked_weights() - PRINTED_WEIGHTS).abs().max()
    return PrintedExample(
        "Erratum 2: the printed table of weights",
        "The table S' is not the softmax of the printed scores at any scale; rounding explains at most 0.005.",
        (
            WorkedNumber("largest difference, scale 1/√64", "0.00 by rounding", vector_text(error)),
            WorkedNumber("largest difference, best scale", "0.00 by rounding", vector_text(torch.stack(errors).min())),
        ),
    )


def value_index_erratum() -> PrintedExample:
    """The output sums over the values of the keys."""
    query, key = queries_and_keys(HELP_ME, 16)
    value = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    weights = attention_weights(query, key)
    as_printed = weights.sum(1, keepdim=True) * value
    no_numerator = (1 / scaled_dot(query, key).exp().sum(1, keepdim=True)).expand(-1, 2)
    return PrintedExample(
        "Erratum 3: whose value?",
        "The lecture writes o_i = Σ_j α_ij v_i; the sum must run over v_j, or every output is its own value. With the "
        "weights of Number 1 and the values 1, 0 and 0, 1. Its softmax has lost the numerator, the exponential:",
        (
            WorkedNumber("o_1", vector_text(as_printed[0]), vector_text(attention(query, key, value)[0])),
            WorkedNumber("weights of help", vector_text(no_numerator[0]), vector_text(weights[0])),
        ),
    )


def frequency_erratum() -> PrintedExample:
    """The frequency of a position encoding falls with the dimension."""
    encodings = torch.stack([position_encoding(index, 8) for index in range(4)]).double().view(4, 4, 2)
    angles = torch.atan2(encodings[..., 0], encodings[..., 1])
    steps = torch.stack([angles[index + 1, 0] - angles[index, 0] for index in (0, 2)])
    return PrintedExample(
        "Erratum 4: what the frequency depends on",
        "The notes say that frequency falls with the position i. It falls with the dimension j: radians from one "
        "token to the next, for j = 0 to 3 of width 8.",
        (
            WorkedNumber("ω_j = 10000^(−2j/8)", "1.00, 0.10, 0.01, 0.00", vector_text(angles[1] - angles[0])),
            WorkedNumber("j = 0, from token 0 to 1 and from token 2 to 3", "more, then less", vector_text(steps)),
        ),
    )


def two_z_erratum() -> PrintedExample:
    """The outputs of the feed-forward network and of the block are different tensors."""
    torch.manual_seed(1)
    block = Block(SelfAttention(4, 1), FeedForward(4, 8), lambda _: Residual(4))
    with record(block, "feed_forward.output", "feed_forward.residual") as recorded:
        block(torch.randn(1, 3, 4))
    same = torch.allclose(recorded["feed_forward.output"], recorded["feed_forward.residual"])
    return PrintedExample(
        "Erratum 5: two things called z",
        "The chapter calls both the feed-forward network's output and the block's output z; between them are the "
        "skip-connection and the norm.",
        (WorkedNumber("the same tensor", "yes", "yes" if same else "no"),),
    )


def worked_numbers_page() -> str:
    """The page as Markdown."""
    lines = [
        "# Worked numbers and errata",
        "",
        "The examples that the lecture notes compute by hand, and the errors found in them, computed by the "
        "library's own",
        "functions. `heedful lab numbers` prints this page, computed anew; a",
        "[test](../tests/unit/lab/test_printed_examples.py) fails if it differs from what is stored here. Explanations",
        "are in [concepts.md](concepts.md#worked-numbers).",
    ]
    for example in printed_examples():
        lines += [
            "",
            f"## {example.title}",
            "",
            example.text,
            "",
            "| | printed | computed | |",
            "| --- | --- | --- | --- |",
        ]
        for number in example.numbers:
            verdict = "" if number.agrees else "**differs**"
            lines.append(f"| {number.quantity} | {number.printed} | {number.computed} | {verdict} |")
    return "\n".join(lines) + "\n"

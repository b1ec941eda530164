"""Attention tables of a look: one head, the mean of a layer, or the aligned head, between words or tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heedful.errors import UsageError
from heedful.inspection.look_result import AttentionMap, Look, Weights
from heedful.inspection.visible_text import visible
from heedful.interventions.parts import nearest_parts
from heedful.text.token_rows import TokenRow

NO_WORD = "∅"
"""Title of the column for attention to no word (the end of the input)."""
TableUnit = Literal["words", "tokens"]


@dataclass(frozen=True, eq=False)
class AttentionTable:
    """A table of attention: each row's weights sum to 1. Labels are visible text."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    weights: Weights
    outputs: tuple[tuple[int, ...], ...]
    """For each row the outputs of the look that it predicts; none in self-attention."""


def aligned_table(look: Look) -> AttentionTable | None:
    """The attention of output words to input words, by the head that aligns; None without such a head."""
    alignment = look.alignment
    if alignment is None or look.target is None:
        return None
    words = range(len(look.target.words))
    return AttentionTable(
        f"{alignment.part}, {head_name(alignment.head)}",
        tuple(map(visible, look.target.words)),
        (*map(visible, look.inputs.words), NO_WORD),
        alignment.weights,
        tuple(tuple(i for i, output in enumerate(look.outputs) if word in output.words) for word in words),
    )


def attention_table(
    look: Look, part: str | None = None, head: int | None = None, unit: TableUnit = "words"
) -> AttentionTable | None:
    """The attention of a part, of one head or the mean of all.

    Without a part: the aligned head, else the last layer; None for a model without attention.
    """
    aligned = aligned_table(look) if part is None and head is None and unit == "words" else None
    if aligned is not None and aligned.rows:
        return aligned
    table_of = _default_map(look) if part is None else None
    if part is not None:
        table_of, head = find_map(look, part, head)
    if table_of is None:
        return None
    heads = table_of.weights if head is None else table_of.weights[_checked(table_of, head)][None]
    row_groups, labels, outputs = _row_groups(look, table_of, unit)
    column_groups = token_groups(look.row(table_of.columns), unit)
    weights = pool_weights(heads.mean(0), row_groups, [group for group, _ in column_groups])
    return AttentionTable(
        f"{table_of.name}, {head_name(head)}", labels, tuple(label for _, label in column_groups), weights, outputs
    )


def head_name(head: int | None) -> str:
    """The name of a head in captions."""
    return "mean of all heads" if head is None else f"head {head}"


def find_map(look: Look, part: str, head: int | None = None) -> tuple[AttentionMap, int | None]:
    """The map of "decoder.1.cross", with the head, or of "decoder.1.cross.head.3"."""
    name, _, number = part.partition(".head.")
    if name not in look.attention:
        if not look.attention:
            raise UsageError(f"this model has no attention: there is no '{part}' to look at")
        raise UsageError(f"no attention of this model is called '{part}'; {nearest_parts(name, look.attention)}")
    table = look.attention[name]
    if not number:
        return table, None if head is None else _checked(table, head)
    if not number.isdigit() or head not in (None, int(number)):
        raise UsageError(f"'{part}' names one head already; name another with the attention, '{name}'")
    return table, _checked(table, int(number))


def selected_map(look: Look, part: str | None, head: int | None) -> tuple[str, int | None]:
    """Resolve `part` and `head` to the name of an attention and a head; without a part, the aligned head's."""
    if part is None:
        crosses = [name for name, table in look.attention.items() if table.kind == "cross"] or list(look.attention)
        part = look.alignment.part if look.alignment else crosses[-1] if crosses else ""
    table, number = find_map(look, part, head)
    return table.name, number


def _checked(table: AttentionMap, head: int) -> int:
    if not 0 <= head < table.heads:
        heads = "one head, 0" if table.heads == 1 else f"heads 0 to {table.heads - 1}"
        raise UsageError(f"no head {head} in {table.name}: it has {heads}")
    return head


def _default_map(look: Look) -> AttentionMap | None:
    crosses = [attention for attention in look.attention.values() if attention.kind == "cross"]
    return next(reversed(crosses or list(look.attention.values())), None)


def _row_groups(
    look: Look, table: AttentionMap, unit: TableUnit
) -> tuple[list[list[int]], tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Rows of the table: in cross-attention the outputs that they predict, else the tokens that attend."""
    if table.kind != "cross" or look.target is None:
        groups = token_groups(look.row(table.rows), unit)
        return [group for group, _ in groups], tuple(label for _, label in groups), ((),) * len(groups)
    outputs = group_overlapping([output.words for output in look.outputs], unit)
    labels = tuple(
        _label("".join(look.outputs[i].text for i in group), [look.outputs[i].words for i in group], look.target, unit)
        for group in outputs
    )
    return [[look.outputs[i].position for i in group] for group in outputs], labels, tuple(map(tuple, outputs))


def token_groups(row: TokenRow, unit: TableUnit) -> list[tuple[list[int], str]]:
    """Positions of the tokens of each word with its label; special tokens stand alone."""
    groups = group_overlapping([tuple(words) for words in row.word_ranges], unit)
    return [
        (group, _label("".join(row.pieces[i] for i in group), [row.word_ranges[i] for i in group], row, unit))
        for group in groups
    ]


def group_overlapping(words: Sequence[tuple[int, ...]], unit: TableUnit) -> list[list[int]]:
    """Join neighbors that share a word, so that every token is in one group."""
    groups: list[list[int]] = []
    joined: set[int] = set()
    for position, indices in enumerate(words):
        if unit == "words" and groups and joined.intersection(indices):
            groups[-1].append(position)
            joined.update(indices)
        else:
            groups.append([position])
            joined = set(indices)
    return groups


def _label(pieces: str, words: Sequence[Sequence[int]], row: TokenRow, unit: TableUnit) -> str:
    numbers = sorted({word for indices in words for word in indices})
    if unit == "tokens" or not numbers:
        return visible(pieces)
    return visible(" ".join(row.words[word] for word in numbers))


def pool_weights(weights: Weights, rows: Sequence[Sequence[int]], columns: Sequence[Sequence[int]]) -> Weights:
    """Pool token weights to words: sum over the columns of a word, average over its rows; rows still sum to 1."""
    read = np.stack([weights[:, list(group)].sum(1) for group in columns], 1)
    return np.stack([read[list(group)].mean(0) for group in rows])

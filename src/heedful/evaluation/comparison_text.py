"""A comparison as text for a terminal: two columns, and a table of scores by length."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.evaluation.file_comparison import FileComparison
from heedful.evaluation.model_comparison import Comparison, answer_words
from heedful.inspection.attention_table import attention_table
from heedful.inspection.look_text import cut, display_width, isolated, output_lines, table_lines
from heedful.inspection.visible_text import visible


def comparison_lines(comparison: Comparison, width: int = 120) -> Iterator[str]:
    """Both answers with their log-probabilities, then probabilities and attention in two columns."""
    first, second = comparison.looks
    yield f"in   {isolated(' '.join(map(visible, first.inputs.text.split(' '))))}"
    sides = zip(comparison.names, comparison.looks, comparison.differing_words(), strict=True)
    for (name, look, changed), own_p, other_p in zip(
        sides, comparison.log_probabilities, comparison.of_other, strict=True
    ):
        words = [visible(word) for word in answer_words(look)]
        answer = " ".join(f"[{word}]" if index in changed else word for index, word in enumerate(words))
        yield ""
        yield name
        yield f"out  {isolated(answer)}"
        if look.outputs:
            more = "" if other_p is None or comparison.same_answer else f", of the other's answer {_rounded(other_p)}"
            yield f"     log-probability {_rounded(own_p)}{more}"
    yield ""
    yield "the same answer" if comparison.same_answer else "[words] that the other answer does not have"
    half = (width - 3) // 2
    columns = []
    for name, look in zip(comparison.names, (first, second), strict=True):
        table = attention_table(look)
        lines = [cut(name, half), *(output_lines(look, half) if look.outputs else ()), ""]
        columns.append([*lines, *(table_lines(table, half) if table else ["no attention"])])
    yield ""
    for index in range(max(map(len, columns))):
        left, right = (column[index] if index < len(column) else "" for column in columns)
        yield f"{left}{' ' * (half - display_width(left))} │ {right}".rstrip()


def _rounded(log_probability: float) -> str:
    return f"{round(log_probability, 2) + 0.0:.2f}"


def file_comparison_lines(comparison: FileComparison) -> Iterator[str]:
    """The score of both models for all texts and by length, and the texts in which they differ most."""
    first, second = comparison.names
    yield f"{comparison.texts:,} texts, {comparison.same_answers:.1%} with the same answer; {comparison.metric}"
    yield f"A  {first}"
    yield f"B  {second}"
    yield ""
    corpus = "     BLEU A   BLEU B" if comparison.overall.bleu else ""
    yield f"{'words':>11} {'texts':>7} {'A':>8} {'B':>8} {'B − A':>8}   95% interval{corpus}"
    for bucket in (*comparison.buckets, comparison.overall):
        label = "all" if bucket is comparison.overall else f"{bucket.shortest} to {bucket.longest}"
        score_a, score_b = bucket.scores
        interval = bucket.difference
        line = f"{label:>11} {bucket.texts:>7,} {score_a:>8.1f} {score_b:>8.1f} {interval.value:>+8.1f}"
        line += f"   {interval.low:+6.1f} … {interval.high:+6.1f}{' ' if interval.excludes_zero else '?'}"
        yield line + ("".join(f"{score:>9.1f}" for score in bucket.bleu) if bucket.bleu else "")
    yield ""
    yield "?  the interval includes zero: no clear difference on these texts"
    for example in comparison.examples:
        yield ""
        yield f"in   {visible(example.text)}"
        yield f"ref  {visible(example.reference)}"
        for letter, answer, score in zip("AB", example.answers, example.scores, strict=True):
            yield f"{letter}    {visible(answer)}   ({score:.1f})"

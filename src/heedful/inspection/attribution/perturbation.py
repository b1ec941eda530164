"""Hide words from a model: the tokens of a word are removed from its input, or replaced by its mask token.

A word is removed if the rest still resembles training text: in a source, a prompt, a text to classify. A masked
language model was trained on masks instead, and in a passage positions are the answer: there every token of a hidden
word becomes [MASK].
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from heedful.inspection.attribution.explained_output import ExplainedOutput, ExplainSource, keep_tokens
from heedful.inspection.text_pass import TextPass
from heedful.text.special_tokens import END


def hide_words(source: ExplainSource, output: ExplainedOutput, hidden: Collection[int]) -> TextPass:
    """The pass without some of an output's input words, given by their index in `output.words`."""
    tokens = {token for index in hidden for token in output.tokens_of_words[index]}
    if not tokens:
        return output.text_pass
    if source.occluding_token is None:
        return _remove(output.text_pass, tokens)
    row = output.text_pass.inputs
    ids = tuple(source.occluding_token if position in tokens else token for position, token in enumerate(row.ids))
    return replace(output.text_pass, inputs=replace(row, ids=ids))


def _remove(text_pass: TextPass, tokens: set[int]) -> TextPass:
    """The pass without these tokens. A language model with nothing left to read starts a new document."""
    kept = [token for token in range(len(text_pass.inputs)) if token not in tokens]
    row = keep_tokens(text_pass.inputs, kept)
    segments = tuple(text_pass.segments[token] for token in kept) if text_pass.segments else ()
    outputs = text_pass.outputs
    if text_pass.head == "next_token" and text_pass.target is None:
        positions = [sum(token <= output.position for token in kept) - 1 for output in outputs]
        if positions[0] < 0:
            row = replace(row, ids=(END, *row.ids))
            positions = [position + 1 for position in positions]
        outputs = tuple(replace(output, position=position) for output, position in zip(outputs, positions, strict=True))
    return replace(text_pass, inputs=row, segments=segments, outputs=outputs)


def perturbation_name(source: ExplainSource) -> str:
    """How words are hidden, for captions."""
    return "removed" if source.occluding_token is None else "replaced by [MASK]"

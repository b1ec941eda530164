"""Output of `heedful embed --words`: a vector for each occurrence of a word."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.cli.text_io import LineStream
from heedful.errors import DataError, HeedfulError, UsageError
from heedful.files import atomic_file

if TYPE_CHECKING:
    from heedful.inference.text_embedding import Vectors
    from heedful.inference.word_states import WordState, WordStates


@dataclass(frozen=True)
class WordOutput:
    """Selects the words of each text and the format of their vectors."""

    word: str | None
    normalize: bool
    compare: bool
    as_json: bool
    array: Path | None

    def selects(self, state: WordState) -> bool:
        """Whether this is an occurrence of the requested word, regardless of case and punctuation."""
        return self.word is None or bare_word(state.text) == bare_word(self.word)

    def vector(self, state: WordState) -> Vectors:
        import numpy as np

        norm = float(np.linalg.norm(state.vector))
        return state.vector / norm if self.normalize and norm else state.vector


def write_words(texts: Iterable[WordStates], lines: LineStream, output: WordOutput) -> None:
    """Write a line for each word (JSON: for each text), the cosines of occurrences, or an array with a row for each."""
    kept: list[tuple[WordStates, WordState]] = []
    for number, text in enumerate(texts, 1):
        selected = [state for state in text.words if output.selects(state)]
        for warning in text.warnings:
            lines.warn(number, warning)
        if output.compare or output.array is not None:
            kept += [(text, state) for state in selected]
        elif output.as_json:
            lines.write({"text": text.text, "words": [_to_json(state, output) for state in selected]})
        else:
            for state in selected:
                numbers = [f"{value:.6g}" for value in output.vector(state).tolist()]
                lines.write(lines.table_line((number, state.text, state.start, state.end), numbers))
    if output.array is not None:
        save_array([output.vector(state) for _, state in kept], output.array)
    elif output.compare:
        _write_cosines(kept, lines, output)


def bare_word(text: str) -> str:
    """A word without its case and the punctuation around it."""
    start = next((i for i, character in enumerate(text) if character.isalnum()), 0)
    end = next((i for i in range(len(text), 0, -1) if text[i - 1].isalnum()), len(text))
    return text[start:end].casefold()


def save_array(vectors: list[Vectors], output: Path) -> None:
    """Write the vectors as one array; the file appears complete or not at all."""
    import numpy as np

    if not vectors:
        raise DataError("there is no text to embed")
    try:
        with atomic_file(output) as temporary, temporary.open("wb") as stream:
            np.save(stream, np.stack(vectors))
    except OSError as error:
        raise HeedfulError(f"{output} cannot be written: {error.strerror or error}") from None


def _to_json(state: WordState, output: WordOutput) -> dict[str, Any]:
    vector = [round(value, 7) for value in output.vector(state).tolist()]
    return {"text": state.text, "start": state.start, "end": state.end, "vector": vector}


def _write_cosines(occurrences: list[tuple[WordStates, WordState]], lines: LineStream, output: WordOutput) -> None:
    """The cosine of the first occurrence with each of the others."""
    import numpy as np

    from heedful.inference.text_embedding import cosine_similarities

    if len(occurrences) < 2:
        raise UsageError(
            f"'{output.word}' occurs {len(occurrences)} times in these texts: --compare takes at least two"
        )
    (_, first), *others = occurrences
    cosines = cosine_similarities(np.stack([state.vector for _, state in others]), first.vector).tolist()
    for cosine, (text, state) in zip(cosines, others, strict=True):
        entry = {"text": text.text, "word": state.text, "start": state.start, "cosine": cosine}
        lines.write(entry if output.as_json else f"{cosine:.4f}\t{text.text}")

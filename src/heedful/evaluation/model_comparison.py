"""Compare two models of one task on a text: their answers, the probabilities of these, and their attention.

comparison = heedful.compare("translate-1", "recurrent-1", "A dog runs.")
comparison.save("compare.html")
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from math import log
from pathlib import Path
from typing import Any

from heedful.errors import UsageError
from heedful.inference.trained_model import TrainedModel
from heedful.inspection.look_result import Look
from heedful.inspection.result_file import write_result
from heedful.loading import load


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two models' looks at one text, and each model's log-probability of the other's answer; displays in notebooks."""

    names: tuple[str, str]
    looks: tuple[Look, Look]
    of_other: tuple[float | None, float | None]
    """Each model's log-probability of the other's answer; None if it cannot produce that answer."""

    @property
    def same_answer(self) -> bool:
        first, second = self.looks
        return first.output_text == second.output_text

    @property
    def log_probabilities(self) -> tuple[float, float]:
        """Each model's log-probability of its own answer."""
        first, second = map(log_probability, self.looks)
        return first, second

    def differing_words(self) -> tuple[frozenset[int], frozenset[int]]:
        """The indices of the words of each answer that the other answer does not have."""
        first_words, second_words = map(answer_words, self.looks)
        matcher = SequenceMatcher(None, first_words, second_words, autojunk=False)
        changed = [edit for edit in matcher.get_opcodes() if edit[0] != "equal"]
        first = frozenset(i for _, start, end, _, _ in changed for i in range(start, end))
        return first, frozenset(i for _, _, _, start, end in changed for i in range(start, end))

    def to_json(self) -> dict[str, Any]:
        """As JSON values; the looks are those of `Look.to_json`."""
        sides = zip(self.names, self.looks, self.log_probabilities, self.of_other, self.differing_words(), strict=True)
        return {
            "task": self.looks[0].task,
            "text": self.looks[0].inputs.text,
            "same_answer": self.same_answer,
            "models": [
                {
                    "name": name,
                    "answer": look.output_text,
                    "words": answer_words(look),
                    "log_probability": own_score,
                    "log_probability_of_other": other_score,
                    "differing_words": sorted(words),
                    "look": look.to_json(),
                }
                for name, look, own_score, other_score, words in sides
            ],
        }

    def save(self, file: str | Path) -> Path:
        """Write a page that works offline (.html), a picture (.png, .svg, .pdf) or all values (.json)."""

        def draw(path: Path, kind: str) -> None:
            from heedful.inspection.look_picture import draw_side_by_side

            draw_side_by_side(list(zip(self.names, self.looks, strict=True)), path, kind)

        return write_result(file, page=self.to_html, draw=draw, values=self.to_json)

    def to_html(self) -> str:
        """A self-contained HTML page: both answers, their probabilities and attention, linked."""
        from heedful.inspection.look_page import page

        return page("compare", f"{' and '.join(self.names)}: {self.looks[0].inputs.text:.60}", self.to_json())

    def _repr_html_(self) -> str:
        """The page, for display in a notebook."""
        from heedful.inspection.look_page import frame

        return frame(self.to_html())


def compare(
    first: TrainedModel | str | Path,
    second: TrainedModel | str | Path,
    text: str,
    *,
    top: int = 5,
    device: str = "auto",
) -> Comparison:
    """Compare two models of one task on a text: answers, probabilities, attention and alignments side by side.

    Models are folders, or results of `heedful.load`, such as a recurrent model and a transformer, or two checkpoints of
    one run. `compare_files` compares models on held-out text.
    """
    models = load_pair(first, second, device)
    looks = [model.look(text, top=top) for model in models]
    same_answer = looks[0].output_text == looks[1].output_text
    of_other = [
        log_probability(look) if same_answer else _log_probability_of(model, text, other_look)
        for model, look, other_look in zip(models, looks, looks[::-1], strict=True)
    ]
    return Comparison(distinct_names(*models), (looks[0], looks[1]), (of_other[0], of_other[1]))


def load_pair(
    first: TrainedModel | str | Path, second: TrainedModel | str | Path, device: str
) -> tuple[TrainedModel, TrainedModel]:
    """Load models given as folders, and check that both have the same task."""
    models = [model if isinstance(model, TrainedModel) else load(model, device=device) for model in (first, second)]
    if models[0].task != models[1].task:
        kinds = " and ".join(f"{model.name} is {model.kind}" for model in models)
        raise UsageError(f"{kinds}: compare two models of one task")
    return models[0], models[1]


def distinct_names(first: TrainedModel, second: TrainedModel) -> tuple[str, str]:
    """The names of two models: of their folders, with the folders above where these are the same."""
    if first.short_name != second.short_name:
        return first.short_name, second.short_name
    if first.name != second.name:
        return first.name, second.name
    return f"{first.short_name} (first)", f"{second.short_name} (second)"


def log_probability(look: Look) -> float:
    """The log-probability of a look's outputs."""
    return sum((log(max(output.probability, 1e-45)) for output in look.outputs), 0.0)


def answer_words(look: Look) -> list[str]:
    """The words of an answer: of a continuation only the generated ones; labels and filled masks are not split."""
    if look.target is not None:
        return list(look.target.words)
    if look.task == "generate":
        return [look.inputs.words[word] for word in sorted({word for output in look.outputs for word in output.words})]
    if look.task == "answer":
        return look.output_text.split()
    return [output.text.strip() for output in look.outputs]


def _log_probability_of(model: TrainedModel, text: str, look: Look) -> float | None:
    """A model's log-probability of another model's answer; a continuation keeps its leading space."""
    answer = "".join(output.text for output in look.outputs) if look.task == "generate" else look.output_text
    try:
        return log_probability(model.look(text, answer, top=1))
    except UsageError:  # an unknown label, or a word of several tokens
        return None

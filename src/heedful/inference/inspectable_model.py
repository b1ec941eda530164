"""InspectableModel: inspect, explain and change what a trained model of any task computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, overload

import torch
from torch import Tensor

from heedful.data.progress import StartProgress, no_progress
from heedful.errors import UsageError, require_positive
from heedful.inference.stored_model import StoredModel
from heedful.inference.text_arguments import target_list, text_list
from heedful.inference.text_embedding import embedding_row
from heedful.inspection.attention_alignment import Alignment
from heedful.inspection.attribution.explain_passes import OUTPUTS_PER_TEXT, explain_pass, measure_faithfulness
from heedful.inspection.attribution.explanation import Explanation
from heedful.inspection.attribution.faithfulness import FaithfulnessTable
from heedful.inspection.census.census_measurement import mean_activations, take_census, usable_passes
from heedful.inspection.census.census_result import AblateTo, Census, ablation_choices
from heedful.inspection.census.head_pruning import PrunedParts, parts_to_prune, prune_parts
from heedful.inspection.look_recording import look_at
from heedful.inspection.look_result import AttentionMap, HeadAlignment, Look
from heedful.inspection.text_pass import TextPass, run_passes
from heedful.interventions.kinds import Intervention, as_interventions
from heedful.interventions.means import ActivationMeans
from heedful.interventions.resolve import resolve
from heedful.layers.taps import TapEdits, record
from heedful.shapes import Float
from heedful.text.special_tokens import END
from heedful.text.token_rows import TokenRow
from heedful.text.word_tokens import Unit

Text = TypeVar("Text")
Result = TypeVar("Result")


def _one_text(text: object) -> str:
    """The text that words are counted in: a pair of texts is one text with a tab."""
    return "\t".join(map(str, text)) if isinstance(text, tuple) else str(text)


class InspectableModel(StoredModel):
    """A model whose computation can be inspected and changed: look, explain, census, interventions, pruning."""

    needs_answers: ClassVar[bool] = True
    """Whether the model is scored on texts with their answers, and not on running text."""

    # fmt: off
    @overload
    def look(  # type: ignore[overload-overlap]
        self, text: str, target: str | None = ..., *, top: int = ..., lens: bool = ...,
        interventions: Sequence[Intervention] | None = ...,
    ) -> Look: ...
    @overload
    def look(
        self, text: Sequence[str], target: Sequence[str | None] | None = ..., *, top: int = ..., lens: bool = ...,
        interventions: Sequence[Intervention] | None = ...,
    ) -> list[Look]: ...
    def look(
        self, text: str | Sequence[str], target: str | Sequence[str | None] | None = None, *, top: int = 5,
        lens: bool = False, interventions: Sequence[Intervention] | None = None,
    ) -> Look | list[Look]:
        """Look inside at a text, or at a list of texts together: attention of every head, probabilities, alignment.

        `target`: the translation, continuation, label or answer to look at; without it the model's, under the same
        interventions. `top`: most probable labels at each output. `lens`: also what each layer would have answered.
        """
        texts, single = text_list(text)
        require_positive(top=top)
        checked = as_interventions(interventions)
        passes = self.text_passes(texts, target_list(target, texts, single), interventions=checked)
        sentences = [str(change) for change in checked or ()]

        def run(batch: Sequence[TextPass]) -> list[Look]:
            return look_at(self, batch, top=top, lens=lens, interventions=sentences)

        looks = list(self.intervened(run, passes, checked, lambda text_pass: text_pass.inputs.text))
        return looks[0] if single else looks

    def explain(
        self, text: str, target: str | None = None, *, word: int | None = None, methods: Sequence[str] | None = None,
        faithfulness: bool = True, interventions: Sequence[Intervention] | None = None,
        start_progress: StartProgress = no_progress,
    ) -> Explanation:
        """Attribute an answer to the words of a text by several methods, and measure how faithful each is.

        `target`: the translation, continuation, label or answer to explain; without it the model's. `word`: the word of
        the output to explain, or the mask, counted from 0; None: every one. `methods`: names of
        `heedful.ATTRIBUTION_METHODS`; None: all that the model has. `faithfulness`: measure them on this text.
        """
        if not isinstance(text, str):
            raise UsageError(f"explain takes one text, got {text!r:.60}")
        checked = as_interventions(interventions)
        if dependent := [str(change) for change in checked or () if change.depends_on_text]:
            raise UsageError(f"'{dependent[0]}' depends on the text, whose words are hidden to explain an output")
        text_pass = self.text_pass(text, target, interventions=checked)

        def run(passes: Sequence[TextPass]) -> list[Explanation]:
            return [
                explain_pass(
                    self, single, word=word, methods=methods, faithfulness=faithfulness,
                    validation=self.measured_faithfulness, interventions=[str(change) for change in checked or ()],
                    start_progress=start_progress,
                )
                for single in passes
            ]

        return self.intervened(run, [text_pass], checked)[0]

    def faithfulness(
        self, texts: Sequence[str], targets: Sequence[str] | None = None, *,
        methods: Sequence[str] | None = None, outputs_per_text: int = OUTPUTS_PER_TEXT,
        progress: Callable[[int], object] = lambda _: None,
    ) -> FaithfulnessTable:
        """Measure how faithful attribution methods are over several texts, with 95% intervals over the texts.

        Explained are the model's own answers, or `targets`; of running text its own words. Texts that the model cannot
        read at once are left out.
        """
        require_positive(outputs_per_text=outputs_per_text)
        sources = text_list(texts)[0]
        if targets is not None and len(targets) != len(sources):
            raise UsageError(f"{len(sources)} texts take {len(sources)} targets, got {len(targets)}")
        examples: list[Any] = list(zip(sources, targets, strict=True)) if targets else [*sources]
        passes, _ = usable_passes(self.scored_passes, examples, None)
        return measure_faithfulness(self, passes, methods, outputs_per_text=outputs_per_text, progress=progress)
    # fmt: on

    @property
    def aligned_head(self) -> Alignment | None:
        """The cross-attention head that aligns words; None for other tasks."""
        return None

    @property
    def occluding_token(self) -> int | None:
        """The token that replaces a word hidden to explain an output; None: the word is removed."""
        return None

    @property
    def blank_token(self) -> int:
        """The token whose vector replaces those of words in the baseline of integrated gradients."""
        if self.occluding_token is not None:
            return self.occluding_token
        return self.template.end if self.model.config.family == "encoder" else END

    def output_probabilities(self, logits: Float[Tensor, "outputs labels"]) -> Float[Tensor, "outputs labels"]:
        """The probabilities of a pass's outputs."""
        return logits.softmax(-1)

    def label_texts(self, text_pass: TextPass, labels: Sequence[int]) -> list[str]:
        """The names of the labels of a pass's outputs: tokens as readable text."""
        return self.tokenizers[-1].pieces(labels)

    def word_alignment(self, text_pass: TextPass, attention: dict[str, AttentionMap]) -> HeadAlignment | None:
        """The words that a translation aligns with those of its source; None for other tasks."""
        return None

    def text_passes(
        self,
        texts: Sequence[str],
        targets: Sequence[str | None] | None = None,
        *,
        interventions: Sequence[Intervention] | None = None,
    ) -> list[TextPass]:
        """The passes of several texts."""
        pairs = zip(texts, targets or [None] * len(texts), strict=True)
        return [self.text_pass(text, target, interventions=interventions) for text, target in pairs]

    def text_pass(
        self, text: str, target: str | None = None, *, interventions: Sequence[Intervention] | None = None
    ) -> TextPass:
        """The forward pass in which the model reads a text and gives an answer: `target`, or its own.

        Its own answer is the one it gives under these interventions.
        """
        self.require_tokenizer()
        return TextPass(None, embedding_row(self.model, self.tokenizer, text), ())

    def scored_passes(self, example: str | tuple[str, str]) -> list[TextPass]:
        """The passes that score the model on a text with its right answer, or on running text (see `needs_answers`).

        UsageError if the model cannot read it in one pass.
        """
        return [self.text_pass(*((example,) if isinstance(example, str) else example))]

    @property
    def word_units(self) -> tuple[Unit, Unit]:
        """Units in which input and output are counted: words or characters."""
        return ("words", "words")

    @property
    def independent_labels(self) -> bool:
        """Whether classes are decided independently, so that a text can have several."""
        return False

    def input_tokens(self, text: str, words: Sequence[int]) -> list[int]:
        """The positions in the model's input of the tokens of these words of a text; UsageError if one is not there."""
        row = self.input_row(text)
        if words and max(words) >= len(row.words):
            raise UsageError(f"{text!r:.60} has words 0 to {len(row.words) - 1}: there is no word {max(words)}")
        tokens = {word: row.tokens_of_word(word) for word in words}
        for word, positions in tokens.items():
            if not positions:
                raise UsageError(
                    f"word {word} of {text!r:.60}, '{row.words[word]}', has no tokens of text; name tokens"
                )
        return [token for positions in tokens.values() for token in positions]

    def input_length(self, text: str) -> int:
        """The number of tokens that the model reads of a text."""
        return len(self.input_row(text))

    def input_row(self, text: str) -> TokenRow:
        """The tokens of a text as the model reads them."""
        return embedding_row(self.model, self.tokenizer, text)

    def recorded_value(self, tap: str, text: str, target: str | None = None) -> Tensor:
        """The value at a tap when the model reads a text, and decodes it or reads the target: one row, all tokens."""
        run = self.reading(text, target)
        with torch.inference_mode(), record(self.model, tap) as recorded:
            run()
        if tap not in recorded:
            raise UsageError(f"{tap} is not computed when {self.kind} reads a text")
        return recorded.over_steps(tap)

    def reading(self, text: str, target: str | None = None) -> Callable[[], object]:
        """A function that runs the model on a text and its answer, for `recorded_value`."""
        return partial(run_passes, self.model, [self.text_pass(text, target)])

    def measure_means(
        self,
        examples: Iterable[str | tuple[str, str]],
        *,
        limit: int | None = None,
        start_progress: StartProgress = no_progress,
    ) -> ActivationMeans:
        """Measure the mean values that `Ablate(…, to="mean")` substitutes for parts; `save` keeps them.

        `examples`: texts like those the model was trained on, as for `census`. `limit`: their maximum number.
        """
        require_positive(limit=limit)
        passes, _ = usable_passes(self.scored_passes, list(examples), limit)
        if not passes:
            raise UsageError("no texts to measure means over")
        self.means = mean_activations(self.model, passes, start_progress)
        return self.means

    def census(
        self,
        examples: Iterable[str | tuple[str, str]],
        *,
        to: AblateTo | Sequence[AblateTo] = ("zero", "mean"),
        limit: int | None = None,
        state: str | os.PathLike[str] | None = None,
        start_progress: StartProgress = no_progress,
    ) -> Census:
        """Switch every head, attention, feed-forward net, skip and position encoding off in turn; measure what is lost.

        `examples`: validation texts with their answers, such as pairs of source and target; running text for language
        models and models that fill masks. `to`: what is put in a part's place, zeros, its mean over these texts, or
        both. `limit`: maximum number of examples, evenly spaced. `state`: a file that an interrupted census is
        continued from.
        """
        require_positive(limit=limit)
        choices, chosen = ablation_choices(to), list(examples)
        if self.needs_answers and (plain := [example for example in chosen if isinstance(example, str)]):
            raise UsageError(f"{self.kind} is scored on texts with their answers, as pairs; got {plain[0]!r:.60}")
        passes, skipped = usable_passes(self.scored_passes, chosen, limit)
        measured = copy(self)
        if "mean" in choices and passes and measured.means is None:
            measured.means = mean_activations(self.model, passes, start_progress)
        file = None if state is None else Path(state)
        return take_census(measured, passes, to=choices, skipped=skipped, state=file, start_progress=start_progress)

    def prune(self, parts: Sequence[str]) -> Self:
        """A smaller, faster copy without these parts, such as ["decoder.1.cross.head.3"]; `save` writes it.

        Parts are heads, attentions and feed-forward networks. Where means are measured (`measure_means`), the mean
        values of heads stay, as part of the biases; a model without biases keeps zeros in their place.
        """
        pruned = parts_to_prune(self.model, parts)
        model = prune_parts(self.model, pruned, self.means)
        return type(self)(model, self.tokenizers, None, **self.pruned_settings(pruned))

    def pruned_settings(self, pruned: PrunedParts) -> dict[str, Any]:
        """The stored settings that remain valid without these parts."""
        return {
            name: getattr(self, name) for name in self.settings_files if name not in ("means", "measured_faithfulness")
        }

    def activation_mean(self, tap: str) -> Tensor:
        """The mean value at a tap over the texts of `measure_means`."""
        if self.means is None:
            raise UsageError(
                f"{self.name} has no mean activations to put in a part's place; measure them with "
                "heedful census --save-means or measure_means(texts), or ablate to zero"
            )
        mean = self.means.at(tap)
        if mean is None:
            raise UsageError(f"{tap} has no measured mean; ablate it to zero")
        return mean

    def edits(self, interventions: Sequence[Intervention] | None, text: str | None = None) -> TapEdits | None:
        """The tap edits of a call's interventions; None if it has none."""
        return None if interventions is None else resolve(self, interventions, text)

    def intervened(
        self,
        run: Callable[[Sequence[Text]], Sequence[Result]],
        texts: Sequence[Text],
        interventions: Sequence[Intervention] | None,
        text_of: Callable[[Text], str] = _one_text,
    ) -> Sequence[Result]:
        """Run a batch of texts under interventions: each text alone if they are not the same for all.

        `text_of`: the text in which interventions count words.
        """
        if not interventions:
            return run(texts)
        if any(change.depends_on_text for change in interventions):
            return [
                result
                for text in texts
                for result in self._run_edited(run, [text], resolve(self, interventions, text_of(text)))
            ]
        return self._run_edited(run, texts, resolve(self, interventions))

    def _run_edited(
        self, run: Callable[[Sequence[Text]], Sequence[Result]], texts: Sequence[Text], edits: TapEdits
    ) -> Sequence[Result]:
        with edits.applied(self.model):
            return run(texts)

"""The `translate` task: pairs of texts, an encoder-decoder, BLEU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from heedful.data.batching import ScoringSample, evenly_spaced
from heedful.data.corpus_files import CorpusFiles
from heedful.data.corpus_readers import read_pairs
from heedful.data.dataset import PreparedData, Split
from heedful.data.doctor_report import CorpusReport
from heedful.data.pair_dataset import PairBatches, prepare_pairs, train_pair_tokenizers
from heedful.data.progress import StartProgress
from heedful.data.unicode_scripts import script_of
from heedful.evaluation.baselines import unigram_loss
from heedful.evaluation.bleu_tokenizer import choose_bleu_tokenizer, tokenizer_of_script
from heedful.evaluation.calibration import draw_reliability
from heedful.evaluation.evaluator import evaluate_translation, seem_swapped
from heedful.evaluation.perplexity import evaluate_perplexity
from heedful.evaluation.text_metrics import sample_scores
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.select import training_backend
from heedful.inference.translator import Translator
from heedful.inspection.attention_alignment import TranslationModel
from heedful.inspection.attention_sample import attention_sample, choose_sample_pair
from heedful.inspection.confidence import Confidence
from heedful.objectives.seq2seq_loss import Seq2SeqLoss
from heedful.quantities import count
from heedful.text.subword_regularization import SubwordSplits
from heedful.training.defaults import ScalingRule, TrainingConditions, largest_size
from heedful.training.recipe import Recipe
from heedful.training.reporting.translator_calibration import calibrate_translator, evaluation_length_limits
from heedful.training.tasks import EvaluationOptions
from heedful.training.tasks.task import MainScore, Task, Tokenizers, TrainingComponents, no_better_than_unigrams
from heedful.training.trainer import Evaluation

CARD_SAMPLES = 5
ATTENTION_PAIRS = 32
"""Number of validation pairs from which one is chosen, whose attention is recorded at each evaluation."""
SWAPPED = (
    "{} seems to be in the target language: the model predicts it better from the other side than the other way "
    "round. Are the files in the wrong order? A model is scored in one direction only"
)
SCRIPT_SAMPLE = 2000
"""Training targets that the BLEU tokenizer is chosen by."""
MIN_BLEU, MIN_CHRF, MIN_EXACT_MATCH = 5.0, 25.0, 0.05
"""A translator below all three has not learned to translate."""
MIN_DISTINCT = 0.2
"""Fewer different translations than this share of the different references: they are alike."""


class TranslationTask(Task[Translator]):
    """Sequence-to-sequence translation."""

    name = "translate"
    corpus_kind = "pairs"
    description = "translates"
    main_score = MainScore("bleu", "BLEU", ".1f")
    evaluation_details = ("by_length", "by_position")
    selection_metric = "BLEU with greedy search, or by loss where no 4-gram matches,"
    score_note = "BLEU is cased and detokenized, with a 95% bootstrap interval; compare only equal signatures."
    sample_columns = ("source", "model", "reference")
    scaling_rule = ScalingRule(parameters_per_layer=28, stacks=2, min_epochs=12, max_epochs=60)
    vocabulary_factor = 23
    has_recurrent_model = True

    def corpus_size(self, report: CorpusReport) -> str:
        return f"{report.usable:,} pairs"

    def train_tokenizers(self, recipe: Recipe, files: CorpusFiles, characters: int) -> Tokenizers:
        return train_pair_tokenizers(files, *recipe.tokenizer.training(characters), joint=recipe.tokenizer.joint)

    def prepare_data(self, recipe: Recipe, files: CorpusFiles, tokenizers: Tokenizers, characters: int) -> PreparedData:
        return prepare_pairs(files, tokenizers, max_length=recipe.data.max_length)

    def validation_fraction(self, characters: int) -> float:
        return min(0.1 if characters < 20_000 else 0.02, 5_000_000 / characters)

    def bleu_tokenizer(self, recipe: Recipe, data: PreparedData) -> str:
        """The requested BLEU tokenizer, or the one for the script of the target texts, training text included."""
        if recipe.training.bleu_tokenizer != "auto":
            return recipe.training.bleu_tokenizer
        side = data.train.sides[-1]
        rows = evenly_spaced(len(side), SCRIPT_SAMPLE)
        trained = data.tokenizers[-1].decode([side[row].tolist() for row in rows])
        return tokenizer_of_script([*trained, *(target for _, target in data.valid.texts)])

    def model_defaults(self, conditions: TrainingConditions) -> dict[str, Any]:
        size, scarce = largest_size(conditions, self.scaling_rule), conditions.low_resource
        if conditions.recurrent:
            wide = {"width": 2 * size["width"], "layers": 1}
            return {"family": "recurrent_encoder_decoder", **wide, "cell": "lstm", "dropout": 0.3 if scarce else 0.2}
        dropout = 0.3 if scarce else 0.1
        return {"family": "encoder_decoder", **size, "norm_order": "pre", "positions": "rotary", "dropout": dropout}

    def training_defaults(self, conditions: TrainingConditions, model: dict[str, Any]) -> dict[str, Any]:
        return {
            "batch_tokens": 8192 if conditions.gpu else 3072,
            "learning_rate": min(3e-3, 2e-3 * (256 / model["width"]) ** 0.5),
            "label_smoothing": 0.1,
            "schedule": "cosine",
            "average": "exponential",
            "weight_decay": 0.01,
            "r_drop": 1.0 if conditions.gpu and conditions.low_resource else 0.0,
        }

    def setup_summary(self, recipe: Recipe, data: PreparedData) -> list[str]:
        """How BLEU is computed, where that is not as usual."""
        references = [target for _, target in data.valid.texts]
        tokenizer = choose_bleu_tokenizer(references, recipe.training.bleu_tokenizer, data.text.bleu_tokenizer)
        return [] if tokenizer.name == "13a" else [f"scores     {tokenizer.note or f'BLEU of {tokenizer.name} tokens'}"]

    def training_components(self, recipe: Recipe, data: PreparedData, device: torch.device) -> TrainingComponents:
        training, dropout = recipe.training, recipe.tokenizer.subword_dropout
        tables = tuple(SubwordSplits(tokenizer) for tokenizer in data.tokenizers) if dropout else ()
        train = PairBatches(
            *data.train.sides,
            max_tokens=training.batch_tokens,
            seed=recipe.seed,
            splits=(tables[0], tables[-1]) if tables else None,
            subword_dropout=dropout,
        )
        valid = PairBatches(*data.valid.sides, max_tokens=training.batch_tokens, seed=recipe.seed, shuffle=False)
        objective = Seq2SeqLoss(training.label_smoothing, training.r_drop)
        indices = evenly_spaced(len(data.valid.texts), training.eval_texts)
        examples = [data.valid.texts[index] for index in indices]
        targets = [target for _, target in examples]
        limits = evaluation_length_limits(data.tokenizers[-1], targets)
        sample_pair = choose_sample_pair(examples[:ATTENTION_PAIRS])
        bleu_tokenizer = choose_bleu_tokenizer(targets, training.bleu_tokenizer, data.text.bleu_tokenizer)

        def evaluate(model: TranslationModel) -> Evaluation:
            scores = evaluate_perplexity(model, objective, valid, data.valid, device, limit=training.eval_labels)
            sources = data.tokenizers[0].encode([source for source, _ in examples])
            hypotheses = training_backend(model).translate(SearchRequest(sources, max_lengths=limits))
            outputs = data.tokenizers[-1].decode([best.tokens for best, *_ in hypotheses])
            sampled = sample_scores(outputs, targets, bleu_tokenizer)
            metrics = {
                "valid_loss": scores["loss"],
                "perplexity": scores["perplexity"],
                "bleu": sampled.bleu,
                "chrf": sampled.chrf,
            }
            sample = (f"source     {examples[0][0]}", f"model      {outputs[0]}", f"reference  {examples[0][1]}")
            attention = None if sample_pair is None else attention_sample(model, sample_pair, data.tokenizers)
            return Evaluation(sampled.selection(scores["loss"]), metrics, sample, attention)

        def generate(model: TranslationModel, texts: int, at_most: int | None) -> None:
            lengths = limits[:texts] if at_most is None else [at_most] * texts
            sources = data.tokenizers[0].encode([source for source, _ in examples[:texts]])
            training_backend(model).translate(SearchRequest(sources, max_lengths=lengths))

        return TrainingComponents(objective, train, valid, evaluate, len(examples), generate)

    def evaluate_files(self, trained: Translator, files: Sequence[Path], options: EvaluationOptions) -> dict[str, Any]:
        read = read_pairs(files, columns=options.columns, on_bad_line=options.on_bad_line)
        pairs = [(pair.source, pair.target) for pair in read]
        sources, targets = (list(side) for side in zip(*pairs, strict=True))
        scripts = script_of(sources), script_of(targets)
        warnings: list[str] = []
        if trained.training_text:
            trained.training_text.refuse_swapped(files, scripts)
            warnings += trained.training_text.target_warnings(files, scripts)
        scores = self._evaluate(trained, pairs, options)
        if len({*scripts}) == 1 and seem_swapped(trained, pairs):
            warnings.append(SWAPPED.format(files[0]))
        return {**scores, "warnings": warnings} if warnings else scores

    def evaluate_split(self, trained: Translator, split: Split, options: EvaluationOptions) -> dict[str, Any]:
        fitted = trained.confidence.texts if trained.confidence else 0
        sample = ScoringSample.choose(len(split.texts), fitted=fitted, share=options.share)
        return self._evaluate(trained, [split.texts[index] for index in sample.indices], options, sample.held_out)

    def _evaluate(
        self,
        trained: Translator,
        pairs: Sequence[tuple[str, ...]],
        options: EvaluationOptions,
        held_out: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        return evaluate_translation(
            trained,
            pairs,
            beam=options.beam,
            length_penalty=options.length_penalty,
            bleu_tokenizer=options.bleu_tokenizer,
            start_progress=options.start_progress,
            held_out=held_out,
            by_length=options.by_length,
            by_position=options.by_position,
        )

    def calibrate(self, best: Translator, data: PreparedData, start_progress: StartProgress, texts: int) -> None:
        calibrate_translator(best, data, start_progress, texts)

    def baseline_scores(self, data: PreparedData) -> dict[str, float]:
        train, valid, vocabulary = data.train.sides[-1], data.valid.sides[-1], len(data.tokenizers[-1])
        return {"unigram_loss": unigram_loss(train, valid, vocabulary, ends=True)}

    def weaknesses(self, scores: dict[str, Any]) -> list[str]:
        distinct, references = scores["distinct_outputs"], scores["distinct_references"]
        alike = f"{count(distinct, 'different translation')} for {count(references, 'reference')}"
        signs = [
            (
                scores["bleu"] < MIN_BLEU and scores["chrf"] < MIN_CHRF and scores["exact_match"] < MIN_EXACT_MATCH,
                f"BLEU {scores['bleu']:.1f} and chrF {scores['chrf']:.1f}",
            ),
            (distinct < MIN_DISTINCT * references, alike),
            (scores["copied_sources"] > 0.5, f"{scores['copied_sources']:.0%} of the translations copy their source"),
            (
                scores["bleu"] <= scores["source_bleu"] and scores["chrf"] < scores["source_chrf"],
                f"copying the source scores more: {self._against_copying(scores)}",
            ),
        ]
        return [sign for applies, sign in signs if applies] + no_better_than_unigrams(scores)

    def _against_copying(self, scores: dict[str, Any]) -> str:
        """The scores by which copies of the sources are better, beside those of the translations."""
        pairs = {"BLEU": ("source_bleu", "bleu"), "chrF": ("source_chrf", "chrf")}
        figures = {name: tuple(f"{scores[key]:.1f}" for key in keys) for name, keys in pairs.items()}
        return ", ".join(
            f"{name} {copied} against {model}" for name, (copied, model) in figures.items() if copied != model
        )

    def baselines(self, scores: dict[str, Any]) -> list[str]:
        return [f"copying the source: BLEU {scores['source_bleu']:.1f}, chrF {scores['source_chrf']:.1f}"]

    def scarcity(self, data: PreparedData) -> str:
        pairs = data.train.examples
        return f"only {pairs:,} pairs: a translator needs tens of thousands" if pairs < 10_000 else ""

    def card_section(self, best: Translator, scores: dict[str, Any]) -> str:
        alignment = "nothing: this model has no cross-attention" if best.alignment is None else str(best.alignment)
        unit = (best.confidence or Confidence()).unit.removesuffix("s")
        error, raw = (scores.get(f"{unit}_calibration_error{suffix}") for suffix in ("", "_raw"))
        compared = "uncorrected: no correction lowered it on held-out text" if raw is None else f"{raw:.3f} uncorrected"
        return f"""
## Alignment and confidence

Words are aligned by {alignment}.

Expected calibration error of {unit} probabilities: {error:.3f} ({compared}). A {unit} is correct if the reference has
it in the same order.
"""

    def plots(self, scores: dict[str, Any], folder: Path) -> dict[str, Path]:
        unit = "word" if "word_calibration_error" in scores else "character"
        return {"reliability": draw_reliability(scores["reliability"], folder / "reliability.png", unit)}

    def headline(self, scores: dict[str, Any]) -> str:
        return (
            f"BLEU {scores['bleu']:.1f} (95%: {scores['bleu_low']:.1f} to {scores['bleu_high']:.1f}), "
            f"chrF {scores['chrf']:.1f}, exact match {scores['exact_match']:.1%} of {scores['texts']:,}"
        )

    def explained_example(self, example: tuple[str, ...]) -> str | tuple[str, str]:
        return example[0], example[1]

    def samples(self, best: Translator, split: Split) -> list[tuple[str, ...]]:
        examples = [split.texts[index] for index in evenly_spaced(len(split.texts), CARD_SAMPLES)]
        outputs = best.translate([source for source, _ in examples], engine="torch")
        return [(source, output, target) for (source, target), output in zip(examples, outputs, strict=True)]


TASK = TranslationTask()

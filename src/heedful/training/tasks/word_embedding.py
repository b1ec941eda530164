"""The `embed` task: running text, skip-gram word vectors, analogies and similarities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heedful.data.dataset import PreparedData, Split
from heedful.data.skip_gram_batches import SkipGramBatches, count_words
from heedful.errors import UsageError
from heedful.evaluation.perplexity import evaluate_perplexity
from heedful.evaluation.word_vector_benchmarks import evaluate_word_vectors
from heedful.inference.embedder import Embedder
from heedful.models.word_vectors import WordVectors
from heedful.objectives.skip_gram_loss import SkipGramLoss
from heedful.quantities import count
from heedful.syntax import argument
from heedful.text.special_tokens import UNKNOWN
from heedful.text.tokenizer import Tokenizer
from heedful.training.defaults import ScalingRule, TrainingConditions
from heedful.training.recipe import Recipe
from heedful.training.tasks import EvaluationOptions
from heedful.training.tasks.task import TextTask, TrainingComponents
from heedful.training.trainer import Evaluation
from heedful.vectors.model_word_table import word_table_from_model

PROBES = (30, 100, 300, 1000, 3000)
"""Frequency ranks of the words whose nearest neighbors are shown."""
MAX_WORDS = 200_000
BENCHMARK_SCORES = ("accuracy", "spearman")
MIN_KNOWN_WORDS = 0.3
"""Share of words in the vocabulary below which what was separated by spaces are hardly words."""


class WordEmbeddingTask(TextTask[Embedder]):
    """Word vectors by skip-gram with negative sampling."""

    name = "embed"
    held_out_files = ("valid",)  # test files are word sets, not text
    supports_distributed = False  # a step updates a few rows: communication would take longer than the step
    description = "maps words to vectors"
    score_note = (
        "The loss only compares runs on the same text. To measure quality, use `--test questions-words.txt` or "
        "`heedful evaluate` with analogy and similarity sets."
    )
    sample_columns = ("word", "nearest words")
    scaling_rule = ScalingRule(parameters_per_layer=0, stacks=1, min_epochs=5, max_epochs=15)

    def validation_fraction(self, characters: int) -> float:
        return min(0.05, 500_000 / characters)

    def vocabulary_size(self, characters: int) -> int:
        """The upper bound; `tokenizer.min_count` decides which words are in."""
        return MAX_WORDS

    def tokenizer_defaults(self, characters: int) -> dict[str, Any]:
        min_count = 5 if characters > 2_000_000 else 2
        return {"kind": "bare_words", "lowercase": True, "min_count": min_count, "sample": max(1, characters)}

    def model_defaults(self, conditions: TrainingConditions) -> dict[str, Any]:
        return {"family": "word_vectors", "width": 100}

    def training_defaults(self, conditions: TrainingConditions, model: dict[str, Any]) -> dict[str, Any]:
        return {
            "batch_tokens": 1024,
            "optimizer": "row_adagrad",
            "learning_rate": 2.4,
            "schedule": "linear",
            "warmup": 0,
            "clip": 0.0,
            "label_smoothing": 0.0,
            "weight_decay": 0.0,
            "average": "none",
            "precision": "float32",
            "cuda_graphs": False,
        }

    def training_components(self, recipe: Recipe, data: PreparedData, device: torch.device) -> TrainingComponents:
        training, tokenizer = recipe.training, data.tokenizers[0]
        counts = count_words(data.train.sides[0], len(tokenizer))
        batching: dict[str, Any] = {
            "words": training.batch_tokens,
            "window": training.window,
            "subsample": training.subsample,
            "seed": recipe.seed,
        }
        train = SkipGramBatches(data.train.sides[0], counts, **batching)
        valid = SkipGramBatches(data.valid.sides[0], counts, **batching, shuffle=False)
        objective = SkipGramLoss(training.negatives)

        def evaluate(model: WordVectors) -> Evaluation:
            scores = evaluate_perplexity(model, objective, valid, data.valid, device, limit=training.eval_labels)
            loss = scores["loss"]
            lines = tuple(f"{word:<12} {near}" for word, near in neighborhoods(model, tokenizer)[-3:])
            return Evaluation(-loss, {"valid_loss": loss}, lines)

        return TrainingComponents(objective, train, valid, evaluate)

    def evaluate_files(self, trained: Embedder, files: Sequence[Path], options: EvaluationOptions) -> dict[str, Any]:
        if options.columns:
            raise UsageError(f"benchmarks of word vectors have no columns to choose; leave out {argument('columns')}")
        return evaluate_word_vectors(trained.words, files, options.on_bad_line)

    def evaluate_split(self, trained: Embedder, split: Split, options: EvaluationOptions) -> dict[str, Any]:
        ids = split.sides[0].ids
        known = float(np.mean(np.asarray(ids) != UNKNOWN)) if len(ids) else 1.0
        return {"words": len(trained.words), "width": trained.model.config.width, "known_words": known}

    def baseline_scores(self, data: PreparedData) -> dict[str, float]:
        return {}

    def weaknesses(self, scores: dict[str, Any]) -> list[str]:
        if scores.get("known_words", 1.0) >= MIN_KNOWN_WORDS:
            return []
        return [
            f"only {scores['known_words']:.0%} of the words of the validation text are in the vocabulary; words are "
            "separated by spaces: put spaces between those of a script without them (a segmenter does)"
        ]

    def baselines(self, scores: dict[str, Any]) -> list[str]:
        if any(name.endswith(BENCHMARK_SCORES) for name in scores):
            return ["untrained vectors score about 0"]
        return ["quality not measured: that takes word sets, such as questions-words.txt"]

    def scarcity(self, data: PreparedData) -> str:
        words = len(data.train.sides[0].ids)
        return f"only {count(words, 'word')} of text: word vectors need a million or more" if words < 500_000 else ""

    def headline(self, scores: dict[str, Any]) -> str:
        lines = [
            f"{name.replace('_', ' ')} {value:.3f}" for name, value in scores.items() if name.endswith(BENCHMARK_SCORES)
        ]
        return ", ".join(lines) or f"{scores['words']:,} words, {scores['width']} dimensions"

    def samples(self, best: Embedder, split: Split) -> list[tuple[str, ...]]:
        return [*neighborhoods(best.model, best.tokenizers[0])]


def neighborhoods(model: WordVectors, tokenizer: Tokenizer, top: int = 6) -> list[tuple[str, str]]:
    """The nearest neighbors of a few words, common and rare."""
    words = word_table_from_model(model, tokenizer, "the table")
    probes = [words.words[rank] for rank in PROBES if rank < len(words)] or words.words[:3]
    return [(word, ", ".join(near.word for near in words.similar(word, top))) for word in probes]


TASK = WordEmbeddingTask()

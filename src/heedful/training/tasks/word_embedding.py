"""Embed: running text, a table of word vectors, and what they say of each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from heedful.data.dataset_preparation import Prepared, Split
from heedful.data.skip_gram_batches import WindowBatches, count_words
from heedful.data.stage_progress import Stages
from heedful.errors import UsageError
from heedful.evaluation.perplexity import predict
from heedful.evaluation.word_vector_benchmarks import judge_words
from heedful.inference.trained import TrainedModel
from heedful.objectives.skip_gram_loss import SkipGramLoss
from heedful.text.tokenizer import Tokenizer
from heedful.training.defaults import ScalingRule, TrainingConditions
from heedful.training.recipe import Recipe
from heedful.training.tasks.task import TextTask, TrainingComponents
from heedful.training.trainer import Evaluation
from heedful.vectors.vector_sources import words_of_model

PROBES = (30, 100, 300, 1000, 3000)
"""By how frequent they are: words whose neighbours show how far the vectors have come."""
MOST_WORDS = 200_000


class WordEmbeddingTask(TextTask):
    """A vector for a word."""

    name = "embed"
    held_out_files = ("valid",)  # tests are sets of words, no text
    supports_distributed = False  # what learns by rows is a few rows of a table: sending them around would take longer
    description = "knows words by the company they keep"
    score_note = (
        "The loss tells two runs on one text apart, no more. `--test questions-words.txt`, or `heedful evaluate` with "
        "sets of analogies and similarities, tells how good the vectors are."
    )
    sample_columns = ("word", "nearest words")
    appetite = ScalingRule(parameters_per_layer=0, stacks=1, min_epochs=5, max_epochs=15)

    def validation_fraction(self, characters: int) -> float:
        return min(0.05, 500_000 / characters)

    def vocabulary_size(self, characters: int) -> int:
        """At most; which words there are, `tokenizer.min_count` decides."""
        return MOST_WORDS

    def tokenizer_defaults(self, characters: int) -> dict[str, Any]:
        rare = 5 if characters > 2_000_000 else 2
        return {"kind": "bare_words", "lowercase": True, "min_count": rare, "sample": max(1, characters)}

    def model_defaults(self, situation: TrainingConditions) -> dict[str, Any]:
        if situation.recurrent:
            raise UsageError("word vectors are a table and nothing else: leave out --model recurrent")
        return {"family": "word_vectors", "width": 100}

    def training_defaults(self, situation: TrainingConditions, model: dict[str, Any]) -> dict[str, Any]:
        return {
            "batch_tokens": 1024,
            "optimizer": "rows",
            "learning_rate": 2.4,
            "schedule": "linear",
            "warmup": 0,
            "clip": 0.0,
            "label_smoothing": 0.0,
            "weight_decay": 0.0,
            "average": "none",
            "precision": "float32",
            "record": False,
        }

    def training_components(self, recipe: Recipe, data: Prepared, device: torch.device) -> TrainingComponents:
        training, tokenizer = recipe.training, data.tokenizers[0]
        counts = count_words(data.train.sides[0], len(tokenizer))
        how: dict[str, Any] = {
            "words": training.batch_tokens,
            "window": training.window,
            "subsample": training.subsample,
            "seed": recipe.seed,
        }
        train = WindowBatches(data.train.sides[0], counts, **how)
        valid = WindowBatches(data.valid.sides[0], counts, **how, shuffle=False)
        objective = SkipGramLoss(training.negatives)

        def evaluate(model: Any) -> Evaluation:
            loss = predict(model, objective, valid, data.valid, device, limit=training.eval_labels).loss
            lines = tuple(f"{word:<12} {near}" for word, near in neighbourhoods(model, tokenizer)[-3:])
            return Evaluation(-loss, {"valid_loss": loss}, lines)

        return TrainingComponents(objective, train, valid, evaluate)

    def evaluate_files(self, trained: TrainedModel, files: Sequence[Path], **options: Any) -> dict[str, Any]:
        return judge_words(trained.words, files, options.get("on_bad_line", "fail"))

    def evaluate_split(self, trained: TrainedModel, split: Split, stages: Stages) -> dict[str, Any]:
        return {"words": len(trained.words), "width": trained.model.config.width}

    def headline(self, scores: dict[str, Any]) -> str:
        told = [
            f"{name.replace('_', ' ')} {value:.3f}"
            for name, value in scores.items()
            if name.endswith(("accuracy", "spearman"))
        ]
        return ", ".join(told) or f"{scores['words']:,} words, {scores['width']} numbers each"

    def samples(self, best: TrainedModel, split: Split) -> list[tuple[str, ...]]:
        return [*neighbourhoods(best.model, best.tokenizers[0])]


def neighbourhoods(model: Any, tokenizer: Tokenizer, top: int = 6) -> list[tuple[str, str]]:
    """A few words, common and rare, each with those nearest to it."""
    words = words_of_model(model, tokenizer, "the table")
    probes = [words.words[place] for place in PROBES if place < len(words)] or words.words[:3]
    return [(word, ", ".join(near.word for near in words.similar(word, top))) for word in probes]


TASK = WordEmbeddingTask()

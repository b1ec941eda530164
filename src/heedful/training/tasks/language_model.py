"""The `generate` task: running text, a decoder, bits per byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from heedful.data.corpus_readers import read_documents
from heedful.data.dataset import PreparedData, Split
from heedful.data.text_dataset import TextBatches
from heedful.errors import UsageError
from heedful.evaluation.evaluator import evaluate_split, evaluate_text
from heedful.evaluation.perplexity import evaluate_perplexity
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.select import training_backend
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.search.settings import SearchSettings
from heedful.inference.generator import Generator
from heedful.layers.scores import POSITION_SCORES
from heedful.models.decoder import Decoder
from heedful.models.recurrent import RecurrentDecoder
from heedful.objectives.causal_lm_loss import CausalLMLoss
from heedful.training.defaults import ScalingRule, TrainingConditions, largest_size
from heedful.training.recipe import Recipe
from heedful.training.tasks import EvaluationOptions
from heedful.training.tasks.task import MainScore, TextTask, TrainingComponents
from heedful.training.trainer import Evaluation

SAMPLE_TOKENS = 64
"""Tokens sampled at each evaluation."""


def position_limit(model: dict[str, Any], context: int) -> int:
    """The context, or the size of a smaller table of positions that the model has."""
    has_table = model.get("positions") == "learned" or model.get("score") in POSITION_SCORES
    length = model.get("max_length", context)
    return min(context, length) if has_table and isinstance(length, int) else context


class LanguageModelTask(TextTask[Generator]):
    """Causal language modeling."""

    name = "generate"
    description = "generates text"
    main_score = MainScore("bits_per_byte", "bits per byte", ".3f", higher_is_better=False)
    evaluation_details = ("by_position", "context")
    selection_metric = "bits per byte"
    score_note = "Bits per byte are comparable across tokenizers; perplexity per token is not."
    sample_columns = ("unprompted text",)
    scaling_rule = ScalingRule(parameters_per_layer=12, stacks=1, min_epochs=3, max_epochs=30)
    vocabulary_factor = 6  # the output layer runs at every token of a long text
    has_recurrent_model = True

    def model_defaults(self, conditions: TrainingConditions) -> dict[str, Any]:
        size, scarce = largest_size(conditions, self.scaling_rule), conditions.low_resource
        if conditions.recurrent:
            shape = {"width": 2 * size["width"], "layers": 2}
            return {"family": "recurrent_decoder", **shape, "cell": "lstm", "dropout": 0.3 if scarce else 0.2}
        return {"family": "decoder", **size, "norm_order": "pre", "positions": "rotary", "norm": "rms", "bias": False,
                "activation": "silu", "gated": True, "feed_forward": 64 * round(size["width"] * 8 / 3 / 64),
                "embedding_scale": False, "dropout": 0.1 if conditions.gpu and scarce else 0.0}  # fmt: skip

    def training_defaults(self, conditions: TrainingConditions, model: dict[str, Any]) -> dict[str, Any]:
        return {
            "batch_tokens": 16_384 if conditions.gpu else 2048,
            "context": position_limit(model, 256 if conditions.gpu else 128),
            "learning_rate": min(3e-3, 2e-3 * (256 / model["width"]) ** 0.5),
            "betas": (0.9, 0.95),
            "label_smoothing": 0.0,
            "schedule": "cosine",
            "average": "none",
            "weight_decay": 0.1,
        }

    def derived_model_settings(self, settings: dict[str, Any], data: PreparedData) -> dict[str, Any]:
        model, context = settings["model"], settings["training"]["context"]
        if model["family"] != "decoder":
            return {}
        if context > (limit := position_limit(model, context)):
            raise UsageError(
                f"training.context={context} is longer than the {limit} positions of model.max_length: "
                f"set training.context={limit}"
            )
        return {"max_length": context}

    def training_components(self, recipe: Recipe, data: PreparedData, device: torch.device) -> TrainingComponents:
        training = recipe.training
        rows = max(1, training.batch_tokens // training.context)
        train = TextBatches(data.train.sides[0], context=training.context, rows=rows, seed=recipe.seed)
        valid = TextBatches(data.valid.sides[0], context=training.context, rows=rows, seed=recipe.seed, shuffle=False)
        objective = CausalLMLoss(training.label_smoothing)
        prompt = data.valid.sides[0].ids[:8].tolist()

        def generate(model: Decoder | RecurrentDecoder, texts: int, at_most: int | None) -> list[int]:
            settings = SearchSettings(sampling=SamplingConfig(), max_length=at_most or SAMPLE_TOKENS)
            ((sample,),) = training_backend(model).generate(SearchRequest([prompt], settings))
            return sample.tokens

        def evaluate(model: Decoder | RecurrentDecoder) -> Evaluation:
            scores = evaluate_perplexity(model, objective, valid, data.valid, device, limit=training.eval_labels)
            text = data.tokenizers[0].decode([[*prompt, *generate(model, 1, None)]])[0]
            reported = {name: scores[name] for name in ("perplexity", "bits_per_byte")}
            metrics = {"valid_loss": scores["loss"], **reported}
            return Evaluation(-scores["bits_per_byte"], metrics, tuple(text.splitlines()))

        return TrainingComponents(objective, train, valid, evaluate, 1, generate)

    def evaluate_files(self, trained: Generator, files: Sequence[Path], options: EvaluationOptions) -> dict[str, Any]:
        pieces = read_documents(files, columns=options.columns, on_bad_line=options.on_bad_line)
        return evaluate_text(trained, pieces, context=options.context, by_position=options.by_position)

    def evaluate_split(self, trained: Generator, split: Split, options: EvaluationOptions) -> dict[str, Any]:
        return evaluate_split(trained, split, share=options.share)

    def baselines(self, scores: dict[str, Any]) -> list[str]:
        if "unigram_loss" not in scores:
            return []
        return [f"by token frequencies: {scores['bits_per_byte'] * scores['unigram_loss'] / scores['loss']:.3f}"]

    def headline(self, scores: dict[str, Any]) -> str:
        return f"{scores['bits_per_byte']:.3f} bits per byte, perplexity {scores['perplexity']:.2f} per token"

    def samples(self, best: Generator, split: Split) -> list[tuple[str, ...]]:
        return [(best.generate("", max_length=120, seed=seed),) for seed in range(2)]


TASK = LanguageModelTask()

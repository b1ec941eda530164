"""The `fill` task: running text, a masked language model (encoder), accuracy on masked tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from heedful.data.corpus_files import CorpusFiles
from heedful.data.corpus_readers import read_documents, read_sentences
from heedful.data.dataset import PreparedData, Split
from heedful.data.next_sentence import masked_batches
from heedful.data.text_dataset import prepare_text
from heedful.errors import UsageError
from heedful.evaluation.masked_lm_metrics import (
    encode_documents,
    evaluate_masked_lm,
    predicts_next_sentence,
    score_masked_tokens,
)
from heedful.inference.mask_filler import MASK_TEXT, MaskFiller
from heedful.models.encoder import Encoder
from heedful.objectives.masked_lm_loss import MaskedLMLoss
from heedful.syntax import by_interface
from heedful.text.sentence_splitter import split_sentences
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.tokenizer import Tokenizer
from heedful.training.defaults import ScalingRule, TrainingConditions, largest_size
from heedful.training.recipe import Recipe
from heedful.training.tasks import EvaluationOptions
from heedful.training.tasks.task import MainScore, TextTask, Tokenizers, TrainingComponents
from heedful.training.trainer import Evaluation

CARD_SAMPLES = 5


class MaskedLMTask(TextTask[MaskFiller]):
    """Masked language modeling, optionally with next-sentence prediction."""

    name = "fill"
    description = "fills in masked words"
    score_note = (
        "Loss and perplexity are those of masked tokens: comparable only under the same tokenizer and masking "
        "probability, and not with a causal language model's."
    )
    main_score = MainScore("accuracy", "accuracy", ".1%")
    sample_columns = ("text", "model", "masked word")
    scaling_rule = ScalingRule(parameters_per_layer=12, stacks=1, min_epochs=1, max_epochs=100)
    vocabulary_factor = 12  # the output layer runs at few tokens, and a masked token is best a whole word
    pretrained_families = ("encoder",)
    head_prefixes = ("heads.masked_token", "heads.next_sentence", "heads.pooled")

    def prepare_data(self, recipe: Recipe, files: CorpusFiles, tokenizers: Tokenizers, characters: int) -> PreparedData:
        end, sentences = SpecialTokenTemplate.from_tokenizer(tokenizers[0]).end, recipe.data.next_sentence
        return prepare_text(files, tokenizers[0], characters=characters, sentences=sentences, end=end)

    def model_defaults(self, conditions: TrainingConditions) -> dict[str, Any]:
        size, scarce = largest_size(conditions, self.scaling_rule), conditions.low_resource
        return {"family": "encoder", **size, "norm_order": "pre", "positions": "rotary", "activation": "gelu",
                "embedding_scale": False, "dropout": 0.1 if conditions.gpu and scarce else 0.0}  # fmt: skip

    def training_defaults(self, conditions: TrainingConditions, model: dict[str, Any]) -> dict[str, Any]:
        return {
            "batch_tokens": 16_384 if conditions.gpu else 2048,
            "context": 128,
            "learning_rate": min(2e-3, 1e-3 * (256 / model["width"]) ** 0.5),
            "betas": (0.9, 0.98),
            "label_smoothing": 0.0,
            "schedule": "cosine",
            "average": "none",
            "weight_decay": 0.01,
        }

    def derived_model_settings(self, settings: dict[str, Any], data: PreparedData) -> dict[str, Any]:
        context = {"max_length": settings["training"]["context"]}
        if settings["data"].get("next_sentence"):
            segments, tasks = settings["model"].get("segments", 2), settings["model"].get("tasks", ("next_sentence",))
            if segments < 2 or "next_sentence" not in tasks:
                option = by_interface("data.next_sentence", "--next-sentence")
                raise UsageError(f"the model to start from has no next-sentence head: leave out {option}")
            return {"tasks": ("masked_token", "next_sentence"), "segments": 2, **context}
        return {"tasks": ("masked_token",), **context}

    def split_size(self, split: Split) -> str:
        return f"{int(split.sides[0].lengths.sum()):,} tokens, {split.size.bytes:,} bytes"

    def training_components(self, recipe: Recipe, data: PreparedData, device: torch.device) -> TrainingComponents:
        training, tokenizer = recipe.training, data.tokenizers[0]
        batches = partial(
            masked_batches,
            tokenizer=tokenizer,
            next_sentence=recipe.data.next_sentence,
            context=training.context,
            tokens=training.batch_tokens,
            seed=recipe.seed,
            share=training.mask_probability,
            whole_words=training.whole_word_masking,
        )
        train, valid = batches(data.train.sides[0]), batches(data.valid.sides[0], shuffle=False)
        examples = masked_examples(data.valid, tokenizer, 1, training.context)

        def evaluate(model: Encoder) -> Evaluation:
            scores = score_masked_tokens(model, valid, device, limit=training.eval_labels)
            reported = ("perplexity", "accuracy", "next_sentence_accuracy")
            metrics = {"valid_loss": scores["loss"], **{name: scores[name] for name in reported if name in scores}}
            rows = [sample_row(MaskFiller(model, (tokenizer,)), text, word) for text, word in examples]
            lines = tuple(
                f"{name:<17}{part}" for row in rows for name, part in zip(self.sample_columns, row, strict=True)
            )
            return Evaluation(-scores["loss"], metrics, lines)

        return TrainingComponents(MaskedLMLoss(training.label_smoothing), train, valid, evaluate)

    def evaluate_files(self, trained: MaskFiller, files: Sequence[Path], options: EvaluationOptions) -> dict[str, Any]:
        read = read_sentences if predicts_next_sentence(trained) else read_documents
        pieces = read(files, columns=options.columns, on_bad_line=options.on_bad_line)
        return evaluate_masked_lm(trained, encode_documents(trained, pieces))

    def evaluate_split(self, trained: MaskFiller, split: Split, options: EvaluationOptions) -> dict[str, Any]:
        return evaluate_masked_lm(trained, split.sides[0], share=options.share)

    def headline(self, scores: dict[str, Any]) -> str:
        line = (
            f"accuracy {scores['accuracy']:.1%} on {scores['tokens']:,} masked tokens, "
            f"perplexity {scores['perplexity']:.2f}"
        )
        if (accuracy := scores.get("next_sentence_accuracy")) is None:
            return line
        return f"{line}, next-sentence accuracy {accuracy:.1%} on {scores['pairs']:,} pairs"

    def samples(self, best: MaskFiller, split: Split) -> list[tuple[str, ...]]:
        examples = masked_examples(split, best.tokenizers[0], CARD_SAMPLES, best.model.config.max_length)
        return [sample_row(best, text, word) for text, word in examples]


def sample_row(filler: MaskFiller, text: str, masked_word: str) -> tuple[str, ...]:
    """A masked text, the model's most probable words, and the word that was masked."""
    result = filler.fill(text, top=3)
    return text, ", ".join(f"{word} {probability:.0%}" for word, probability in result.guesses[0]), masked_word


def masked_examples(split: Split, tokenizer: Tokenizer, count: int, max_length: int) -> list[tuple[str, str]]:
    """Sentences from all over the text with one single-token word masked, and that word."""
    special_tokens = len(SpecialTokenTemplate().wrap([]))
    ids = split.sides[0].ids
    examples: list[tuple[str, str]] = []
    for attempt in range(4 * count):
        start = attempt * len(ids) // (4 * count)
        (text,) = tokenizer.decode([ids[start : start + 100].tolist()])
        for sentence in [piece.text for piece in split_sentences(text)][1:-1]:  # the first and last are cut off
            words = sentence.split()
            candidates = [index for index, word in enumerate(words) if index and word.isalpha() and len(word) > 2]
            single = [
                index for index in candidates if len(tokenizer.encode([" " + words[index]], at_start=False)[0]) == 1
            ]
            fits = len(tokenizer.encode([sentence])[0]) + special_tokens <= max_length
            if fits and 4 <= len(words) <= 25 and single and len(examples) < count:
                masked = single[len(single) // 2]
                examples.append((" ".join([*words[:masked], MASK_TEXT, *words[masked + 1 :]]), words[masked]))
                break
    return examples


TASK = MaskedLMTask()

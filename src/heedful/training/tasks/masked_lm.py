"""Fill: running text with words hidden, an encoder, how many it finds again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from heedful.data.corpus_readers import read_documents
from heedful.data.dataset_preparation import PreparedData, Split, prepare_text
from heedful.data.next_sentence import masked_batches
from heedful.data.sentence_documents import read_sentences
from heedful.data.progress import StartProgress
from heedful.errors import UsageError
from heedful.evaluation.masked_lm_metrics import encode_documents, score_masked_tokens, evaluate_masked_lm, predicts_next_sentence
from heedful.inference.mask_filler import MASK_TEXT, MaskFiller
from heedful.inference.trained import TrainedModel
from heedful.objectives.masked_lm_loss import MaskedLMLoss
from heedful.text.sentence_splitter import split_sentences as split_sentences
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.tokenizer import Tokenizer
from heedful.training.defaults import ScalingRule, TrainingConditions, vocabulary_for, largest_size
from heedful.training.recipe import Recipe
from heedful.training.tasks.task import EvaluationOptions, TextTask, TrainingComponents, preparation_arguments
from heedful.training.trainer import Evaluation

SHOWN = 5
"""Sentences the card shows."""


class MaskedLMTask(TextTask):
    """A word that was hidden."""

    name = "fill"
    description = "fills gaps"
    score_note = (
        "Loss and perplexity are of hidden tokens, given all others: they compare under one tokenizer and one share of "
        "hidden tokens, and not with a language model's, which sees one side only."
    )
    sample_columns = ("text", "model", "what stood there")
    appetite = ScalingRule(parameters_per_layer=12, stacks=1, min_epochs=1, max_epochs=100)
    pretrained_families = ("encoder",)
    head_prefixes = ("heads.masked_token", "heads.next_sentence", "heads.pooled")

    def prepare_data(
        self, recipe: Recipe, tokenizers: tuple[Tokenizer, ...], characters: int, start_progress: StartProgress
    ) -> PreparedData:
        end, sentences = SpecialTokenTemplate.from_tokenizer(tokenizers[0]).end, recipe.data.next_sentence
        kind: dict[str, Any] = {"characters": characters, "sentences": sentences, "end": end}
        return prepare_text(tokenizer=tokenizers[0], **kind, **preparation_arguments(recipe, start_progress))

    def vocabulary_size(self, characters: int) -> int:
        """More than a writer's: the output layer sees few tokens, and a gap is one token, best a whole word."""
        return vocabulary_for(12, characters)

    def model_defaults(self, situation: TrainingConditions) -> dict[str, Any]:
        if situation.recurrent:
            raise UsageError("fill reads a text from both sides at once: leave out --model recurrent")
        size, scarce = largest_size(situation, self.appetite), situation.low_resource
        return {"family": "encoder", **size, "norm_order": "pre", "positions": "rotary", "activation": "gelu",
                "embedding_scale": False, "dropout": 0.1 if situation.gpu and scarce else 0.0}  # fmt: skip

    def training_defaults(self, situation: TrainingConditions, model: dict[str, Any]) -> dict[str, Any]:
        return {
            "batch_tokens": 16_384 if situation.gpu else 2048,
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
            has, tasks = settings["model"].get("segments", 2), settings["model"].get("tasks", ("next_sentence",))
            if has < 2 or "next_sentence" not in tasks:
                raise UsageError("the model to start from was not made for two texts: leave out --next-sentence")
            return {"tasks": ("masked_token", "next_sentence"), "segments": 2, **context}
        return {"tasks": ("masked_token",), **context}

    def split_size(self, split: Split) -> str:
        return f"{int(split.sides[0].lengths.sum()):,} tokens, {split.bytes:,} bytes"

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
        shown = gaps_in(data.valid, tokenizer, 1, training.context)

        def evaluate(model: Any) -> Evaluation:
            found = score_masked_tokens(model, valid, device, limit=training.eval_labels)
            scores = {"valid_loss": found.loss, "perplexity": found.perplexity, "accuracy": found.accuracy}
            if found.next_sentence_accuracy is not None:
                scores["next_sentence_accuracy"] = found.next_sentence_accuracy
            rows = [tried(MaskFiller(model, tokenizer, top=3), text, stood) for text, stood in shown]
            lines = tuple(
                f"{name:<17}{part}" for row in rows for name, part in zip(self.sample_columns, row, strict=True)
            )
            return Evaluation(-found.loss, scores, lines)

        return TrainingComponents(MaskedLMLoss(training.label_smoothing), train, valid, evaluate)

    def evaluate_files(self, trained: TrainedModel, files: Sequence[Path], options: EvaluationOptions) -> dict[str, Any]:
        read = read_sentences if predicts_next_sentence(trained) else read_documents
        pieces = read(files, on_bad_line=options.on_bad_line)
        return evaluate_masked_lm(trained, encode_documents(trained, pieces))

    def evaluate_split(self, trained: TrainedModel, split: Split, start_progress: StartProgress) -> dict[str, Any]:
        return evaluate_masked_lm(trained, split.sides[0])

    def headline(self, scores: dict[str, Any]) -> str:
        found, follows = f"{scores['accuracy']:.1%} of {scores['tokens']:,}", scores.get("next_sentence_accuracy")
        words = f"{found} hidden tokens found, perplexity {scores['perplexity']:.2f}"
        return words if follows is None else f"{words}; next sentences told {follows:.1%} of {scores['pairs']:,} times"

    def samples(self, best: TrainedModel, split: Split) -> list[tuple[str, ...]]:
        gaps = gaps_in(split, best.tokenizers[0], SHOWN, best.model.config.max_length)
        return [tried(best.filler(top=3), text, stood) for text, stood in gaps]


def tried(filler: MaskFiller, text: str, stood: str) -> tuple[str, ...]:
    """A text with a gap, the model's first words for it, and what stood there."""
    (found,) = filler.fill([text])
    return text, ", ".join(f"{word} {probability:.0%}" for word, probability in found.guesses[0]), stood


def gaps_in(split: Split, tokenizer: Tokenizer, number: int, longest: int) -> list[tuple[str, str]]:
    """Sentences from all over the text, with one word gone from the middle, and that word: one that is one token."""
    around = len(SpecialTokenTemplate().wrap([]))
    ids = split.sides[0].ids
    found: list[tuple[str, str]] = []
    for place in range(4 * number):
        start = place * len(ids) // (4 * number)
        (text,) = tokenizer.decode([ids[start : start + 100].tolist()])
        for sentence in [piece.text for piece in split_sentences(text)][1:-1]:  # whole ones
            words = sentence.split()
            usual = [at for at, word in enumerate(words) if at and word.isalpha() and len(word) > 2]
            whole = [at for at in usual if len(tokenizer.encode([" " + words[at]], at_start=False)[0]) == 1]
            fits = len(tokenizer.encode([sentence])[0]) + around <= longest
            if fits and 4 <= len(words) <= 25 and whole and len(found) < number:
                gone = whole[len(whole) // 2]
                found.append((" ".join([*words[:gone], MASK_TEXT, *words[gone + 1 :]]), words[gone]))
                break
    return found


TASK = MaskedLMTask()

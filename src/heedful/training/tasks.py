"""What each task makes of the same loop: its batches, its objective, and how its work is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from heedful.data.batches import Batches, PairBatches, TextBatches
from heedful.data.prepare import Prepared
from heedful.evaluation.predict import predict
from heedful.evaluation.scores import sample_bleu
from heedful.generation.generate import generate_ids
from heedful.generation.sampling import Draw
from heedful.generation.translate import translate_texts
from heedful.objectives.language import Language
from heedful.objectives.objective import Objective
from heedful.objectives.translation import Translation
from heedful.text.subwords import SplitTable
from heedful.training.loop import Evaluation
from heedful.training.recipe import Recipe

VALID_TOKENS = 200_000
"""Labels of validation text judged at each evaluation, at most."""
SAMPLE_TOKENS = 64
"""Length of the text a language model shows of itself at each evaluation."""


@dataclass(frozen=True)
class Task:
    """All that the loop needs to know of a task."""

    objective: Objective
    train: Batches
    valid: Batches
    evaluate: Callable[[nn.Module], Evaluation]


def make_task(recipe: Recipe, data: Prepared, device: torch.device) -> Task:
    return translation(recipe, data, device) if recipe.task == "translate" else language(recipe, data, device)


def translation(recipe: Recipe, data: Prepared, device: torch.device) -> Task:
    training, dropout = recipe.training, recipe.tokenizer.subword_dropout
    tables = tuple(SplitTable(tokenizer) for tokenizer in data.tokenizers) if dropout else ()
    train = PairBatches(
        *data.train.sides,
        tokens=training.batch_tokens,
        seed=recipe.seed,
        splits=(tables[0], tables[-1]) if tables else None,
        subword_dropout=dropout,
    )
    valid = PairBatches(*data.valid.sides, tokens=training.batch_tokens, seed=recipe.seed, shuffle=False)
    objective = Translation(training.label_smoothing, training.r_drop)
    shown = judged_texts(data, device)
    at_most = judged_lengths(data, len(shown))

    def evaluate(model: nn.Module) -> Evaluation:
        scores = predict(model, objective, valid, data.valid, device, limit=VALID_TOKENS)
        outputs = translate_texts(model, data.tokenizers, [source for source, _ in shown], beam=1, at_most=at_most)
        bleu = sample_bleu(outputs, [target for _, target in shown])
        sample_lines = (f"source     {shown[0][0]}", f"model      {outputs[0]}", f"reference  {shown[0][1]}")
        return Evaluation(
            bleu, {"valid_loss": scores.loss, "perplexity": scores.perplexity, "bleu": bleu}, sample_lines
        )

    return Task(objective, train, valid, evaluate)


def judged_texts(data: Prepared, device: torch.device) -> tuple[tuple[str, str], ...]:
    """The validation pairs translated at each evaluation."""
    return data.valid.texts[: 1000 if device.type == "cuda" else 300]


def judged_lengths(data: Prepared, texts: int) -> list[int]:
    """Tokens after which a judged text is cut off: a model that has learned little would ramble on, and what runs that
    far past its reference is wrong anyway."""
    target = data.valid.sides[1]
    return [len(target[i]) * 5 // 4 + 5 for i in range(texts)]


def language(recipe: Recipe, data: Prepared, device: torch.device) -> Task:
    training = recipe.training
    rows = max(1, training.batch_tokens // training.context)
    train = TextBatches(data.train.sides[0], context=training.context, rows=rows, seed=recipe.seed)
    valid = TextBatches(data.valid.sides[0], context=training.context, rows=rows, seed=recipe.seed, shuffle=False)
    objective = Language(training.label_smoothing)

    def evaluate(model: Any) -> Evaluation:
        scores = predict(model, objective, valid, data.valid, device, limit=VALID_TOKENS)
        prompt = data.valid.sides[0].ids[:8].tolist()
        length = min(SAMPLE_TOKENS, training.context)
        ((found,),) = generate_ids(model, [prompt], limit=length, draw=Draw())
        text = data.tokenizers[0].decode([[*prompt, *found.tokens]])[0]
        return Evaluation(
            -scores.bits_per_byte,
            {"valid_loss": scores.loss, "perplexity": scores.perplexity, "bits_per_byte": scores.bits_per_byte},
            tuple(text.splitlines()),
        )

    return Task(objective, train, valid, evaluate)

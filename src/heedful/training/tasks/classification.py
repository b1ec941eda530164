"""Classify: labelled texts, an encoder (or a language model that was one before), accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heedful.data.dataset_preparation import Prepared, Split
from heedful.data.doctor_report import Report
from heedful.data.labelled_dataset import ClassBatches, encode_labelled, framed, learn_from_labelled, prepare_labelled
from heedful.data.labelled_reader import columns_of, read_labelled
from heedful.data.stage_progress import Stages, unseen
from heedful.errors import DataError, UsageError
from heedful.evaluation.calibration import Reliability, draw_reliability
from heedful.evaluation.classification_metrics import (
    batch_scores,
    draw_confusion,
    fit_temperature,
    judge_classes,
    labels_of,
)
from heedful.files import write_atomic
from heedful.inference.classifier import Classes, all_logits
from heedful.inference.trained import NOTES, Trained
from heedful.models.model_config import ModelConfig
from heedful.objectives.classification_loss import Classification, balanced, lifted
from heedful.text.special_token_template import frame_for
from heedful.text.tokenizer import Tokenizer
from heedful.training.defaults import Appetite, Situation, grown_vocabulary, largest
from heedful.training.recipe import Recipe
from heedful.training.tasks.task import (
    Task,
    TrainingComponents,
    held_out_fraction,
    preparation_arguments,
    tokenizer_arguments,
)
from heedful.training.trainer import Evaluation

SKEWED = 3.0
"""Times as many texts of the most frequent class as of the rarest, from which on classes are weighted by themselves."""
FEWEST = 50
"""Texts that a temperature can be told from."""
MOST_WEIGHT = 20.0
"""Of a class: a handful of texts must not outweigh all others."""


class ClassificationTask(Task):
    """A label for a text, or for two."""

    name = "classify"
    kind = "labelled"
    verb = "classifies"
    chosen_by = "accuracy, or macro F1 where classes are weighted or several"
    note = (
        "Accuracy has a 95% interval (Wilson); macro F1 is the mean over classes, however rare; the calibration error "
        "is how far probabilities are, on average, from the share of such answers that are right."
    )
    shown = ("text", "model", "label")
    each = "example"
    appetite = Appetite(per_layer=12, sides=1, epochs=8, most_epochs=20)
    bodies = ("encoder", "decoder")
    heads = ("heads.pooled", "heads.sequence_class")

    def corpus_size(self, found: Report) -> str:
        return f"{found.usable:,} texts with {len(found.labels):,} labels"

    def train_tokenizers(self, recipe: Recipe, found: Report, stages: Stages) -> tuple[Tokenizer, ...]:
        given = tokenizer_arguments(recipe, found.characters, stages)
        return (learn_from_labelled(columns=recipe.data.columns, held_out=held_out_fraction(recipe), **given),)

    def prepare_data(
        self, recipe: Recipe, tokenizers: tuple[Tokenizer, ...], characters: int, stages: Stages
    ) -> Prepared:
        return prepare_labelled(
            tokenizer=tokenizers[0],
            max_length=recipe.data.max_length,
            columns=recipe.data.columns,
            **preparation_arguments(recipe, stages),
        )

    def validation_fraction(self, characters: int) -> float:
        """A tenth of a small set, to tell two models apart at all."""
        return min(0.1, 500_000 / characters)

    def vocabulary_size(self, characters: int) -> int:
        return grown_vocabulary(12, characters)

    def model_defaults(self, situation: Situation) -> dict[str, Any]:
        if situation.recurrent:
            raise UsageError("a classifier is a transformer: leave out --model recurrent")
        size = largest(situation, self.appetite)
        shape = {**size, "norm_order": "pre", "positions": "rotary", "activation": "gelu", "embedding_scale": False}
        return {"family": "encoder", **shape, "pooling": "mean", "dropout": 0.3 if situation.scarce else 0.1}

    def training_defaults(self, situation: Situation, model: dict[str, Any]) -> dict[str, Any]:
        """From a model, small steps that do not wash away what it knows: 5e-5 at 768 wide, more for narrower ones."""
        judged = 20_000 if situation.gpu else 2000
        shared = {"schedule": "linear", "weight_decay": 0.01, "patience": 5, "judged_labels": judged}
        if situation.pretrained:
            rate = min(5e-4, 5e-5 * 768 / model["width"])
            gentle = {"learning_rate": rate, "label_smoothing": 0.0, "average": "none"}
            return {**shared, **gentle, "batch_tokens": 2048 if situation.gpu else 1024}
        rate = min(1e-3, 5e-4 * (256 / model["width"]) ** 0.5)
        firm = {"learning_rate": rate, "label_smoothing": 0.1}
        return {**shared, **firm, "batch_tokens": 4096 if situation.gpu else 2048}

    def derived_model_settings(self, settings: dict[str, Any], data: Prepared) -> dict[str, Any]:
        return {"max_length": data.facts["max_length"]}

    def max_epochs(self, situation: Situation) -> int:
        """Few from a model (Devlin 2019, A.3: two to four); many from nothing, as long as they help."""
        return 4 if situation.pretrained else self.appetite.most_epochs

    def head_settings(self, data: Prepared) -> dict[str, Any]:
        return {"tasks": ("sequence_class",), "classes": len(data.facts["names"])}

    def finetune_settings(self, body: ModelConfig) -> dict[str, Any]:
        """A language model has read all only at the end; of an encoder's tokens all have, and their mean is as good a
        summary as the first, unless that one was trained to be it. Labels are few: some dropout is needed."""
        dropout = {"dropout": max(0.1, getattr(body, "dropout", 0.0))}
        if body.family == "decoder":
            return {"pooling": "last", **dropout}
        return {**dropout, "pooling": "first" if "next_sentence" in getattr(body, "tasks", ()) else "mean"}

    def reinitialized_prefixes(self, start: Trained, data: Prepared) -> tuple[str, ...]:
        """A head for other classes, though there be as many."""
        known = start.notes.names if start.notes is not None else ()
        return () if tuple(data.facts["names"]) == known else ("heads.sequence_class",)

    def task_settings(self, recipe: Recipe, data: Prepared) -> Classes:
        facts = data.facts
        names, texts = tuple(facts["names"]), len(data.train.sides)
        return Classes(names=names, several=facts["several"], texts=texts, max_length=recipe.data.max_length)

    def setup_summary(self, recipe: Recipe, data: Prepared) -> list[str]:
        facts = data.facts
        given = sorted(zip(facts["counts"], facts["names"], strict=True), reverse=True)
        shown = ", ".join(f"{name} ({count:,})" for count, name in given[:8]) + (" …" if len(given) > 8 else "")
        lines = [f"columns    {facts['columns']}", f"classes    {len(given):,}: {shown}"]
        if weights := class_weights(recipe, data):
            what = "label" if facts["several"] else "class"
            times = max(weights) / min(weights)
            lines.append(f"weights    a text of the rarest {what} counts {times:.1f} times one of the commonest")
        return lines

    def split_size(self, split: Split) -> str:
        tokens = sum(int(side.lengths.sum()) for side in split.sides)
        return f"{split.examples:,} examples, {tokens:,} tokens"

    def training_components(self, recipe: Recipe, data: Prepared, device: torch.device) -> TrainingComponents:
        names, several = data.facts["names"], data.facts["several"]
        frame, weights = frame_for(recipe.model["family"], data.tokenizers[0]), class_weights(recipe, data)
        how: dict[str, Any] = {"several": several, "tokens": recipe.training.batch_tokens, "seed": recipe.seed}
        train = ClassBatches(data.train, frame, len(names), weights=weights, **how)
        valid = ClassBatches(data.valid, frame, len(names), shuffle=False, **how)
        objective = Classification(several, recipe.training.label_smoothing)
        text, label = data.valid.texts[0]

        def evaluate(model: nn.Module) -> Evaluation:
            scores = batch_scores(model, valid, names, device, limit=recipe.training.judged_labels)
            kept = {"valid_loss": scores["loss"], "accuracy": scores["accuracy"], "macro_f1": scores["macro_f1"]}
            chosen = "macro_f1" if weights or several else "accuracy"
            sample = (f"text       {text}", f"model      {scores['first']}", f"label      {label}")
            return Evaluation(scores[chosen], kept, sample)

        return TrainingComponents(objective, train, valid, evaluate)

    def evaluate_files(self, trained: Trained, files: Sequence[Path], **options: Any) -> dict[str, Any]:
        classes, columns = trained.notes, options.get("columns", ())
        for path, found in zip(files, columns_of(files, columns), strict=True):
            if (len(found.texts), found.several) != (classes.texts, classes.several):
                many = "any number of labels" if classes.several else "one label"
                raise DataError(f"{path} has {found}; this model knows {classes.texts} text(s) with {many} each")
        rows = list(read_labelled(files, columns=columns, on_bad_line=options.get("on_bad_line", "fail")))
        split, cut = encode_labelled(rows, trained.tokenizers[0], classes.names, classes.max_length)
        scores = judge_classes(trained, split, options.get("stages", unseen))
        return scores | ({"texts_cut_off": cut} if cut else {})

    def evaluate_split(self, trained: Trained, split: Split, stages: Stages) -> dict[str, Any]:
        return judge_classes(trained, split, stages, fitted=trained.notes.fitted)

    def calibrate(self, best: Trained, data: Prepared, stages: Stages) -> None:
        """How sure it should be: a temperature from the first half of the validation texts, kept in task.json."""
        half = data.valid.examples // 2
        if half < FEWEST:
            return
        sides = [side[place].tolist() for place in range(half) for side in data.valid.sides]
        texts = [sides[place : place + len(data.valid.sides)] for place in range(0, len(sides), len(data.valid.sides))]
        frame = frame_for(best.model.config.family, best.tokenizers[0])
        with stages("checking probabilities", half) as watch:
            logits = all_logits(best.model, [framed(frame, text) for text in texts], watch)
        found = fit_temperature(logits, labels_of(data.valid)[:half], data.facts["several"])
        best.notes = best.notes.with_changes(temperature=found, fitted=half)
        assert best.folder is not None, "a trained model has a folder"
        write_atomic(best.folder / NOTES, best.notes.model_dump_json(indent=2) + "\n")

    def plots(self, scores: dict[str, Any], folder: Path) -> dict[str, Path]:
        curves = {name: Reliability.from_json(parts) for name, parts in scores["reliability"].items()}
        drawn = {"reliability": draw_reliability(curves, folder / "reliability.png", of="class")}
        if "confusion" in scores:
            drawn = {"confusion matrix": draw_confusion(**scores["confusion"], file=folder / "confusion.png")} | drawn
        return drawn

    def headline(self, scores: dict[str, Any]) -> str:
        return (
            f"accuracy {scores['accuracy']:.1%} (95%: {scores['accuracy_low']:.1%} to {scores['accuracy_high']:.1%}), "
            f"macro F1 {scores['macro_f1']:.3f}, calibration error {scores['calibration_error']:.3f}, "
            f"{scores['examples']:,} texts"
        )

    def samples(self, best: Trained, split: Split) -> list[tuple[str, ...]]:
        shown = split.texts[:8]
        found = best.classify([text for text, _ in shown])
        return [
            (text, " ".join(f"{label.name} {label.probability:.0%}" for label in each.labels), label)
            for (text, label), each in zip(shown, found, strict=True)
        ]


def class_weights(recipe: Recipe, data: Prepared) -> list[float] | None:
    """How much the texts of each class count: by themselves where classes are skewed, or as the recipe says."""
    counts, how = data.facts["counts"], recipe.training.class_weights
    if how == "none" or (how == "auto" and max(counts) < SKEWED * max(1, min(counts))):
        return None
    return (lifted if data.facts["several"] else balanced)(counts, MOST_WEIGHT)


TASK = ClassificationTask()

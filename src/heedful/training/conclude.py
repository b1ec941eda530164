"""The end of a run: the best model scored, shown at work, and reported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heedful.data.prepare import Prepared
from heedful.evaluation.evaluate import evaluate, judge_split
from heedful.models.build import count
from heedful.trained import Trained, load
from heedful.training.card import RELIABILITY, Report, headline, write_card
from heedful.training.events import Events
from heedful.training.findings import find_out
from heedful.training.machine import describe_machine
from heedful.training.plan import Row
from heedful.training.progress import Progress
from heedful.training.ready import Ready
from heedful.training.recipe import Recipe, to_toml


def conclude(ready: Ready, progress: Progress, compared: Sequence[Row], folder: Path, events: Events) -> Trained:
    """Look into the best model, score it on the test files, or else on what was held out, and write the card."""
    recipe, data = ready.recipe, ready.data
    best = load(folder, device=ready.device)
    if best.task == "translate":
        find_out(best, data, events.stage)
    picture = folder / RELIABILITY
    scored_on = f"{len(recipe.data.test)} test file(s)" if recipe.data.test else "the validation text"
    scores = (
        evaluate(best, recipe.data.test, on_bad_line=recipe.data.on_bad_line, stages=events.stage, picture=picture)
        if recipe.data.test
        else judge_split(best, data.valid, stages=events.stage, picture=picture)
    )
    report = Report(
        task=recipe.task,
        parameters=count(best.model).total,
        data=describe_data(recipe, data),
        recipe=to_toml(recipe),
        scores=scores,
        scored_on=scored_on,
        alignment=describe_alignment(best),
        samples=samples(best, data),
        history=progress.history,
        machine=describe_machine(ready.device),
        best_step=progress.best_step,
        forecast=[row.words() for row in compared],
    )
    card = write_card(report, folder)
    took = ", ".join(f"{name} {fact}" for name, _, fact in report.forecast)
    for line in (
        f"scores     {headline(recipe.task, scores)}, on {scored_on}",
        f"took       {took}",
        f"report     {card}",
    ):
        events.emit("note", text=line)
    events.emit("done", folder=str(folder), card=str(card), scores=scores, compared=[row._asdict() for row in compared])
    return best


def describe_alignment(best: Trained) -> str:
    """Which head to look at, in a sentence; nothing for a model that reads one text only."""
    if best.task != "translate":
        return ""
    found = "none: this model does not attend to its source" if best.alignment is None else str(best.alignment)
    return f"Words are aligned by {found}."


def describe_data(recipe: Recipe, data: Prepared) -> dict[str, str]:
    facts = {"training files": ", ".join(Path(file).name for file in recipe.data.train)}
    for name, split in (("training", data.train), ("validation", data.valid)):
        tokens = sum(int(side.lengths.sum()) for side in split.sides)
        facts[name] = f"{split.examples:,} examples, {tokens:,} tokens, {split.bytes:,} bytes predicted"
    facts["vocabulary"] = " and ".join(f"{len(tokenizer):,} {recipe.tokenizer.kind}" for tokenizer in data.tokenizers)
    said = {f"{remark.fate}: {remark.what}": remark.how_many for remark in data.remarks}
    return facts | said


def samples(best: Trained, data: Prepared, number: int = 5) -> list[tuple[str, ...]]:
    """What the model makes of validation text."""
    if best.task == "generate":
        return [(best.generate("", max_length=120, seed=seed),) for seed in range(2)]
    shown = data.valid.texts[:number]
    outputs = best.translate([source for source, _ in shown], engine="torch")
    return [(source, output, target) for (source, target), output in zip(shown, outputs, strict=True)]

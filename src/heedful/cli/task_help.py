"""Help about the task that is named: `heedful train translate --help`."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from typer.core import TyperCommand

from heedful.syntax import call
from heedful.training.tasks import TASKS

TASK_OPTIONS = {
    "architecture": ("translate", "generate"),
    "bleu_tokenizer": ("translate",),
    "next_sentence": ("fill",),
    "start_from": ("translate", "generate", "fill", "classify", "answer"),
}
"""Options that only some tasks have."""
AUTOMATIC = (
    "Every setting that is not given is chosen for the text, the machine and the time, shown, and saved in recipe.toml."
)


class TaskCommand(TyperCommand):
    """A command whose first argument is a task, and whose help is about that task."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["task"] = next((word for word in args if word in TASKS), None)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        command, task = copy(self), ctx.meta["task"]
        if task is None:
            command.help = f"{self.help}\n\n{_overview(ctx.info_name)}"
        else:
            command.help = f"{self.help}\n\n{_examples(ctx.info_name, task)}"
            command.params = [
                param for param in self.params if param.name != "task" and task in TASK_OPTIONS.get(param.name, TASKS)
            ]
            ctx.info_name = f"{ctx.info_name} {task}"
        super(TaskCommand, command).format_help(ctx, formatter)


def _overview(command: str) -> str:
    """One line for each task: what to type, and what it trains."""
    rows = {call(command, name, *task.example): task.model for name, task in TASKS.items()}
    return f"Tasks, and what to type:\n{_columns(rows)}\n\nMore about one: heedful {command} TASK --help"


def _examples(command: str, name: str) -> str:
    task = TASKS[name]
    typed = call(command, name, *task.example)
    rows = {
        call("doctor", *task.example): "check the text",
        typed: "in 10 minutes",
        f"{typed} --time 1h": "in an hour",
        call(*task.use): "use the model",
    }
    return f"{task.model.capitalize()}, from {task.files}:\n{_columns(rows)}\n\n{AUTOMATIC}"


def _columns(rows: Mapping[str, str]) -> str:
    width = max(map(len, rows))
    return "\n".join(f"  {typed:<{width}}  {meaning}" for typed, meaning in rows.items())

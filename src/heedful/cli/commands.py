"""Register all commands, in the order and the groups in which `heedful --help` lists them."""

from __future__ import annotations

from collections.abc import Callable

from heedful.cli.analogy import analogy
from heedful.cli.answer import answer
from heedful.cli.app import app
from heedful.cli.census import census
from heedful.cli.classify import classify
from heedful.cli.compare import compare
from heedful.cli.demo import demo
from heedful.cli.doctor import doctor
from heedful.cli.embed import embed
from heedful.cli.evaluate import evaluate
from heedful.cli.explain import explain
from heedful.cli.export import export
from heedful.cli.fill import fill
from heedful.cli.generate import generate
from heedful.cli.import_ import import_
from heedful.cli.lab import lab
from heedful.cli.look import look
from heedful.cli.map import map_
from heedful.cli.plan import plan
from heedful.cli.runs import runs
from heedful.cli.serve import serve
from heedful.cli.similar import similar
from heedful.cli.studio import studio
from heedful.cli.task_help import TaskCommand
from heedful.cli.train import train
from heedful.cli.translate import translate

GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "Train": (demo, doctor, plan, train, evaluate, runs),
    "Use a model": (translate, generate, fill, classify, answer, serve),
    "Look inside": (look, explain, census, compare, studio),
    "Vectors": (embed, similar, analogy, map_),
    "Exchange with other libraries": (export, import_),
}
WITH_TASK = (plan, train)
"""Commands whose first argument is a task."""

for group, commands in GROUPS.items():
    for command in commands:
        name, kind = command.__name__.rstrip("_"), TaskCommand if command in WITH_TASK else None
        app.command(name, cls=kind, rich_help_panel=group)(command)

app.add_typer(lab, name="lab", rich_help_panel="Experiments")

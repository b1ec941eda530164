"""Register all commands, in the order `heedful --help` lists them."""

from __future__ import annotations

from heedful.cli.analogy import analogy
from heedful.cli.answer import answer
from heedful.cli.app import app
from heedful.cli.classify import classify
from heedful.cli.demo import demo
from heedful.cli.doctor import doctor
from heedful.cli.embed import embed
from heedful.cli.evaluate import evaluate
from heedful.cli.export import export
from heedful.cli.fill import fill
from heedful.cli.generate import generate
from heedful.cli.import_ import import_
from heedful.cli.map import map_
from heedful.cli.plan import plan
from heedful.cli.runs import runs
from heedful.cli.similar import similar
from heedful.cli.train import train
from heedful.cli.translate import translate

COMMANDS = (
    *(demo, doctor, plan, train, evaluate, runs),
    *(translate, generate, fill, classify, answer, embed, similar, analogy, export),
)
for command in COMMANDS:
    app.command()(command)
app.command("map")(map_)
app.command("import")(import_)

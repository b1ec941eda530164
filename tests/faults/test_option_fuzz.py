"""Extreme values of every numeric option and setting work or are refused in one line, never with a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import TypeAdapter

import heedful
from heedful.cli.app import app
from heedful.cli.commands import GROUPS
from heedful.models.model_config import RecurrentConfig, TransformerConfig
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.training.recipe import DataRecipe, TokenizerRecipe, TrainingRecipe

VALUES = ("0", "-1", "1e30", "nan", "inf", "-inf", "", "1.5", "9" * 30, "x")
SECONDS = 60
"""Longest time of a call."""
TINY = {"model.width": 8, "model.heads": 2, "model.layers": 1, "tokenizer.kind": "words", "tokenizer.vocabulary": 20}
BOOK = ["generate", "book.txt", *(word for key, value in TINY.items() for word in ("--set", f"{key}={value}"))]
COMMANDS = {
    "translate": ["translator", "a b"],
    "generate": ["writer", "a b"],
    "fill": ["filler", "a [MASK]"],
    "classify": ["classifier", "a b"],
    "answer": ["answerer", "--question", "a", "--passage", "b c"],
    "embed": ["filler", "a b"],
    "similar": ["filler", "a"],
    "analogy": ["filler", "a", "b", "c"],
    "map": ["filler", "a", "b", "c"],
    "evaluate": ["translator", "a.en", "a.de"],
    "look": ["translator", "a b"],
    "explain": ["translator", "a b"],
    "plan": BOOK,
    "train": BOOK,
}
"""A call of each command that has numeric options and ends by itself."""
ELSEWHERE = {"census", "demo", "serve", "studio"}
"""They take minutes, or run until they are stopped."""
SCRIPT = """
import io, json, os, resource, signal, sys, traceback
from contextlib import redirect_stderr, redirect_stdout
import heedful.cli.app as app

def late(*_):
    raise TimeoutError("too slow")

signal.signal(signal.SIGALRM, late)
resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
seconds, *calls = json.loads(open(sys.argv[1]).read())
for call in calls:
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    signal.alarm(seconds)
    try:
        with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
            sys.argv = ["heedful", *call]
            app.main()
        problem = ""
    except SystemExit as end:
        for stream in streams:
            stream.flush()
        text = streams[1].buffer.getvalue().decode()
        errors = [line for line in text.splitlines() if line.startswith("heedful: ") or line.startswith("\u2502")]
        problem = "" if not end.code or (errors and "Traceback" not in text) else f"exit {end.code}: {text[-300:]}"
    except BaseException:
        problem = traceback.format_exc()[-1500:]
    finally:
        signal.alarm(0)
    if problem:
        print(json.dumps([call, problem]), flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained models of every task, and text."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = Tokenizer.train(["a b c d"] * 9, TokenizerConfig(kind="words", vocabulary=20))
    heads: dict[str, dict[str, Any]] = {
        "classifier": {"tasks": ("sequence_class",), "classes": 2},
        "answerer": {"tasks": ("answer_span",), "segments": 2},
        "filler": {"tasks": ("masked_token",)},
    }
    for name in ("translator", "writer", *heads):
        preset = "laptop-reader" if name in heads else f"laptop-{name}"
        model = heedful.build(preset, vocabulary=len(tokenizer), width=8, heads=2, layers=1, **heads.get(name, {}))
        tokenizer.save(heedful.save(model, folder / name) / "tokenizer.json")
    lines = "".join(f"{'abcd'[i % 4]} {'abcd'[i // 4 % 4]} {'abcd'[i // 16 % 4]}\n" for i in range(64))
    for file in ("a.en", "a.de", "book.txt"):
        (folder / file).write_text(lines)
    return folder


def problems(fork_server: Any, folder: Path, calls: list[Any]) -> list[Any]:
    """The calls that neither succeeded nor ended with one error line, with their outcomes."""
    (folder / "calls.json").write_text(json.dumps([SECONDS, *calls]))
    before = f"import os; os.chdir({str(folder)!r})\n"
    done = fork_server.run_script(before + SCRIPT, folder / "calls.json", folder=folder)
    assert done.code == 0, done.output[-3000:]
    return [json.loads(line) for line in done.output.splitlines() if line.startswith("[[")]


def numeric_options(command: str) -> list[str]:
    group: Any = typer.main.get_command(app)
    params = group.commands[command].params
    return [param.opts[0] for param in params if param.opts and param.type_descriptor.annotation in (int, float)]


def test_every_command_with_numeric_options_is_called() -> None:
    names = {command.__name__.rstrip("_") for commands in GROUPS.values() for command in commands}
    assert {name for name in names if numeric_options(name)} <= {*COMMANDS, *ELSEWHERE}


@pytest.mark.parametrize("values", [("-1", "1e30", "nan"), pytest.param(VALUES, marks=pytest.mark.slow)], ids=len)
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_numeric_options_of_commands(command: str, values: tuple[str, ...], fork_server: Any, folder: Path) -> None:
    calls = [[command, *COMMANDS[command], option, value] for option in numeric_options(command) for value in values]
    assert not (failed := problems(fork_server, folder, calls)), "\n".join(map(str, failed))


def settings() -> Iterator[tuple[str, str]]:
    """The task, architecture and key of every numeric setting of a recipe."""
    sections = {"data": DataRecipe, "tokenizer": TokenizerRecipe, "training": TrainingRecipe}
    for task, name, fields in (
        *(("translate", name, section.model_fields) for name, section in sections.items()),
        ("translate", "model", TransformerConfig.model_fields),
        ("recurrent", "model", RecurrentConfig.model_fields),
        ("generate", "training", TrainingRecipe.model_fields),
    ):
        for key, field in fields.items():
            if {"integer", "number"} & {*_types(TypeAdapter(field.annotation).json_schema())}:
                yield task, f"{name}.{key}"
    yield from (("translate", key) for key in ("data.valid", "data.train", "data.columns", "start_from", "seed"))


def _types(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from [schema["type"]] if isinstance(schema.get("type"), str) else []
        for value in schema.values():
            yield from _types(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _types(value)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["translate", "recurrent", "generate"])
def test_numeric_settings_of_recipes(task: str, fork_server: Any, folder: Path) -> None:
    calls = []
    for owner, key in settings():
        if owner != task:
            continue
        for value in VALUES:
            tiny = {name: number for name, number in TINY.items() if task != "recurrent" or name != "model.heads"}
            files = ["book.txt"] if task == "generate" else ["a.en", "a.de"]
            calls.append([
                "train", "generate" if task == "generate" else "translate", *files, "--steps", "1", "--device", "cpu",
                *(["--model", "recurrent"] if task == "recurrent" else []),
                *(word for name, number in {**tiny, key: value}.items() for word in ("--set", f"{name}={number}")),
            ])  # fmt: skip
    assert not (failed := problems(fork_server, folder, calls)), "\n".join(map(str, failed))

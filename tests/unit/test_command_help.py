"""The help texts: groups, defaults, and examples that are valid commands."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import heedful
from heedful.cli.app import app, main
from heedful.cli.commands import WITH_TASK
from heedful.training.tasks import TASKS

GROUP: Any = typer.main.get_command(app)
every_command = pytest.mark.parametrize("name", sorted(GROUP.commands))
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run `heedful` in this process, in an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["heedful", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), *capsys.readouterr()

    return run


def examples(text: str) -> list[str]:
    """The commands of a help text, which stand on lines of their own."""
    return re.findall(r"^ +(heedful (?!\w+ TASK)\S.*?)(?: {2}.*)?$", text, re.MULTILINE)


def check(example: str) -> None:
    """Parse a command without running it."""
    _, name, *words = shlex.split(re.split(r" [<>] ", example)[0])
    GROUP.commands[name].make_context(name, words)


def all_commands(group: Any = GROUP) -> Iterator[Any]:
    """Every command, and those of groups of commands."""
    for command in group.commands.values():
        yield from all_commands(command) if hasattr(command, "commands") else [command]


def test_arguments_are_named_in_capitals() -> None:
    names = [
        (command.name, param.name, param.metavar)
        for command in all_commands()
        for param in command.params
        if param.param_type_name == "argument"
    ]
    assert [each for each in names if not each[2] or not each[2].isupper()] == []


@every_command
def test_every_command_has_examples_which_are_valid(name: str) -> None:
    command = GROUP.commands[name]
    if command.callback.__name__ in {each.__name__ for each in WITH_TASK}:
        return  # see below
    lines = examples(command.help)
    assert any(line.startswith(f"heedful {name}") for line in lines)
    for line in lines:
        check(line)


@every_command
def test_the_first_paragraph_of_a_help_text_is_one_sentence_on_one_line(name: str) -> None:
    first = GROUP.commands[name].help.partition("\n\n")[0]
    assert "\n" not in first, "the list of commands would break the line there"


@pytest.mark.parametrize("command", ["train", "plan"])
@pytest.mark.parametrize("task", TASKS)
def test_help_is_about_the_task_that_is_named(run: Run, command: str, task: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    code, text, _ = run(command, task, "--help")
    assert code == 0
    lines = examples(text)
    assert any(line.startswith(f"heedful {command} {task}") for line in lines), text
    for line in lines:
        check(line)
    assert ("--next-sentence" in text) == (task == "fill")
    assert ("--model" in text) == (task in ("translate", "generate"))
    assert "[default: (10m)]" in text


def test_the_list_of_commands_is_grouped(run: Run) -> None:
    code, text, _ = run("--help")
    assert code == 0
    groups = [re.search(rf"─ {name} ─", text) for name in ("Train", "Use a model", "Vectors")]
    assert all(groups)


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version") == (0, f"heedful {heedful.__version__}\n", "")


@pytest.mark.parametrize("command", ["train", "plan"])
def test_without_a_task_the_message_says_what_to_type(run: Run, command: str) -> None:
    code, _, message = run(command)
    assert code == 2
    lines = examples(message)
    assert [line.split()[2] for line in lines] == list(TASKS)
    for line in lines:
        check(line)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "book.txt"], "the task comes before the files, as in heedful train generate book.txt"),
        (["train", "translat", "a"], "did you mean 'translate'?"),
        (["train", "classify"], "classify takes a table of texts and labels: heedful train classify reviews.tsv"),
        (["train", "translate", "a", "b", "--set", "width=64"], "did you mean 'model.width'?"),
        (["train", "fill", "a", "--out", "x", "--resume", "y"], "give only --resume y"),
        (["translate", "Helsinki-NLP/opus-mt-en-de", "x"],
         "hf download Helsinki-NLP/opus-mt-en-de --local-dir opus-mt-en-de"),
        (["fill", "bert-base-uncased", "x"], "hf download bert-base-uncased --local-dir bert-base-uncased"),
        (["train", "generate", "a.txt", "--from", "openai/gpt2"], "hf download openai/gpt2 --local-dir gpt2"),
    ],
)  # fmt: skip
def test_a_mistake_says_what_to_type(run: Run, words: list[str], message: str) -> None:
    code, out, errors = run(*words)
    assert code in (2, 4)
    assert out == ""
    assert message in errors
    assert len(errors.splitlines()) == 1

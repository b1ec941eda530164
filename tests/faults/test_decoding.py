"""Bad input, broken pipes and interruptions while decoding: one clear line, no traceback, no lost output."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.data.dates_corpus import dates_corpus
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

LINES = [pair.source for pair in dates_corpus(train=1, valid=300, test=1).valid]


def _saved(name: str, folder: Path, **settings: Any) -> Path:
    tokenizer = Tokenizer.train(LINES, TokenizerConfig(kind="characters", vocabulary=300))
    torch.manual_seed(4)
    model = heedful.build(name, vocabulary=len(tokenizer), width=16, heads=2, layers=1, **settings)
    for weight in model.parameters():
        weight.data *= 2.5
    tokenizer.save(heedful.save(model, folder) / "tokenizer.json")
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    _saved("laptop-translator", folder / "translator")
    _saved("laptop-writer", folder / "writer", max_length=64)
    heedful.save(heedful.build("bert-tiny", vocabulary=50, width=16, heads=2), folder / "encoder")
    heedful.save(heedful.build("laptop-writer", vocabulary=50, width=16, heads=2, layers=1), folder / "bare")
    (folder / "empty").mkdir()
    return folder


class Command:
    """The real command in its own process, with files for its three streams."""

    def __init__(self, fork_server: Any, folder: Path) -> None:
        self.fork_server, self.folder = fork_server, folder

    def start(self, *arguments: str | Path, stdin: bytes | None = None, before: str = "") -> Any:
        (self.folder / "in").write_bytes(stdin or b"")
        streams = "import os; os.dup2(os.open('in', os.O_RDONLY), 0); os.dup2(os.open('out', 577, 0o600), 1)\n"
        return self.fork_server.start(*arguments, folder=self.folder, before=streams + before)

    def run(self, *arguments: str | Path, stdin: bytes | None = None, before: str = "") -> tuple[int, list[str], str]:
        """Exit code, lines of standard output, and standard error."""
        done = self.start(*arguments, stdin=stdin, before=before).wait()
        assert "Traceback" not in done.output
        out = (self.folder / "out").read_text(encoding="utf-8")
        assert not out or out.endswith("\n")
        return done.code, out.split("\n")[:-1], done.output


@pytest.fixture
def command(fork_server: Any, tmp_path: Path) -> Command:
    return Command(fork_server, tmp_path)


def test_every_input_line_has_one_output_line(command: Command, models: Path) -> None:
    lines = ["", *LINES[:40], "  ", LINES[40], ""]
    code, out, _ = command.run("translate", models / "translator", stdin="\n".join(lines).encode() + b"\n")
    assert (code, len(out)) == (0, len(lines))
    assert [not line for line in out[:1] + out[41:42] + out[43:]] == [True] * 3
    assert out == heedful.load(models / "translator").translate(lines)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["translate", "nowhere", "x"], 4, "nowhere is not a model folder: it does not exist"),
        (["translate", "empty", "x"], 4, "is not a model folder: it has no config.json"),
        (["generate", "empty", "x"], 4, "is not a model folder: it has no config.json"),
        (["translate", "writer", "x"], 2, "is a language model, not a translator; use heedful generate"),
        (["generate", "translator", "x"], 2, "is a translator, not a language model; use heedful translate"),
        (["translate", "encoder", "x"], 2, "is an embedder, not a translator; use heedful embed"),
        (["generate", "bare", "x"], 2, "has no tokenizer.json"),
        (["translate", "translator", "x", "--beam", "4", "--temperature", "1"], 2, "give one or the other"),
        (["translate", "translator", "x", "--top-k", "4"], 2, "give a temperature"),
        (["generate", "writer", "x", "--min-length", "9", "--max-length", "5"], 2, "min_length 9 is more"),
        (["translate", "translator", "x", "--beam", "0"], 2, "beam"),
        (["translate", "translator", "x", "--device", "tpu"], 2, "unknown device 'tpu'"),
        (["translate", "translator", "x", "--prefix", "☃"], 2, "cannot represent the prefix"),
        (["translate", "translator", "x", "--input", "in"], 2, "give one or the other"),
        (["translate", "translator", "--input", "nothing.txt"], 3, "nothing.txt: no such file"),
        (["translate", "translator", "x", "--output", "."], 2, "is a folder"),
    ],
)
def test_usage_errors_are_one_line_with_an_exit_code(
    arguments: list[str], code: int, message: str, command: Command, models: Path
) -> None:
    folders = {path.name for path in models.iterdir()}
    exit_code, out, errors = command.run(*(models / word if word in folders else word for word in arguments))
    assert (exit_code, out) == (code, [])
    assert message in errors
    assert len(errors.strip().splitlines()) == 1


def test_invalid_utf8_stops_after_the_lines_before_it(command: Command, models: Path) -> None:
    stdin = b"3 May 1990\n4 May 1990\n5 \xff May\n6 May 1990\n"
    code, out, errors = command.run("translate", models / "translator", stdin=stdin)
    assert (code, len(out)) == (3, 2)
    assert "heedful: standard input:3: byte offset 24: 0xff is not UTF-8" in errors
    code, out, errors = command.run("translate", models / "translator", "--on-bad-line", "skip", stdin=stdin)
    assert (code, len(out), out[2]) == (0, 4, "")
    assert "heedful: line 3: left empty: byte offset 24: 0xff is not UTF-8" in errors


def test_too_long_line_is_named_and_can_be_skipped(command: Command, models: Path) -> None:
    stdin = b"3 May 1990\n" + b"x" * (1 << 20) + b"\n4 May 1990\n"
    code, out, errors = command.run("translate", models / "translator", stdin=stdin)
    assert (code, len(out)) == (3, 1)
    assert (
        "heedful: standard input:2: byte offset 11: the line is longer than 1,000,000 bytes: break it up (fold -s)\n"
        in errors
    )
    code, out, _ = command.run("translate", models / "translator", "--on-bad-line", "skip", stdin=stdin)
    assert (code, len(out), out[1]) == (0, 3, "")


def test_empty_input_gives_empty_output(command: Command, models: Path) -> None:
    assert command.run("translate", models / "translator", stdin=b"") == (0, [], "")
    assert command.run("generate", models / "writer", stdin=b"") == (0, [], "")


def test_empty_text_and_unknown_symbols_are_translated(command: Command, models: Path) -> None:
    assert command.run("translate", models / "translator", "") == (0, [""], "")
    code, out, errors = command.run("translate", models / "translator", "☃☃")
    assert (code, len(out)) == (0, 1)
    assert "heedful: line 1: 2 of 2 tokens are unknown to the model" in errors


def test_repeated_warnings_are_counted(command: Command, models: Path) -> None:
    code, out, errors = command.run("translate", models / "translator", stdin="☃\n".encode() * 50)
    assert (code, len(out)) == (0, 50)
    assert len(errors.splitlines()) == 21
    assert "more warnings like these" in errors


def test_closed_output_pipe_ends_silently(command: Command, models: Path) -> None:
    """As with `| head`."""
    closed = "read, write = os.pipe(); os.close(read); os.dup2(write, 1)"
    stdin = "\n".join(LINES).encode()
    for arguments in (["translate", models / "translator"], ["generate", models / "writer", "3 May"]):
        assert command.run(*arguments, stdin=stdin, before=closed) == (141, [], "")


def test_interruption_keeps_every_finished_line(command: Command, models: Path) -> None:
    """Ctrl-C while the input pipe stays open."""
    waiting = "read, write = os.pipe(); os.write(write, open('in', 'rb').read()); os.dup2(read, 0)"
    stdin = "\n".join(LINES[:30]).encode() + b"\n"
    running = command.start("translate", models / "translator", stdin=stdin, before=waiting)
    out = command.folder / "out"
    running.wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") == 30)
    running.send(signal.SIGINT)
    done = running.wait()
    assert done.code == 130
    assert "Traceback" not in done.output
    assert out.read_bytes().count(b"\n") == 30


def test_output_file_appears_complete_or_not_at_all(command: Command, models: Path) -> None:
    (command.folder / "a.txt").write_bytes("\n".join(LINES[:20]).encode() + b"\nb\xffd\nlast\n")
    arguments = ["translate", models / "translator", "--input", "a.txt", "--output", "b.txt"]
    code, _, errors = command.run(*arguments)
    assert code == 3
    assert "a.txt:21: byte offset" in errors
    assert "the first 20 lines are in b.part.txt" in errors
    assert not (command.folder / "b.txt").exists()
    assert len((command.folder / "b.part.txt").read_text().splitlines()) == 20
    code, _, _ = command.run(*arguments, "--on-bad-line", "skip")
    assert code == 0
    assert len((command.folder / "b.txt").read_text().splitlines()) == 22
    assert not (command.folder / "b.part.txt").exists()


def test_full_disk_is_one_line(command: Command, models: Path) -> None:
    (command.folder / "a.txt").write_text("\n".join(LINES * 4))
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)"  # noqa: E501
    arguments = ["translate", models / "translator", "--input", "a.txt", "--output", "b.txt", "--beam", "1"]
    code, _, errors = command.run(*arguments, before=limited)
    assert code == 1
    assert "b.txt cannot be written: File too large" in errors
    assert not (command.folder / "b.txt").exists()

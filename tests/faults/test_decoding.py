"""Bad input, broken pipes and interruptions while answering: one clear line, never a traceback, never a lost line."""

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
    """The real command in a process of its own, with files for its three streams."""

    def __init__(self, fork_server: Any, folder: Path) -> None:
        self.fork_server, self.folder = fork_server, folder

    def start(self, *words: str | Path, given: bytes | None = None, before: str = "") -> Any:
        (self.folder / "in").write_bytes(given or b"")
        streams = "import os; os.dup2(os.open('in', os.O_RDONLY), 0); os.dup2(os.open('out', 577, 0o600), 1)\n"
        return self.fork_server.start(*words, folder=self.folder, before=streams + before)

    def run(self, *words: str | Path, given: bytes | None = None, before: str = "") -> tuple[int, list[str], str]:
        """Exit code, lines written, and what was said on standard error."""
        done = self.start(*words, given=given, before=before).wait()
        assert "Traceback" not in done.output
        out = (self.folder / "out").read_text(encoding="utf-8")
        assert not out or out.endswith("\n")
        return done.code, out.split("\n")[:-1], done.output


@pytest.fixture
def command(fork_server: Any, tmp_path: Path) -> Command:
    return Command(fork_server, tmp_path)


def test_one_line_comes_out_for_each_that_goes_in(command: Command, models: Path) -> None:
    given = ["", *LINES[:40], "  ", LINES[40], ""]
    code, out, _ = command.run("translate", models / "translator", given="\n".join(given).encode() + b"\n")
    assert (code, len(out)) == (0, len(given))
    assert [not line for line in out[:1] + out[41:42] + out[43:]] == [True] * 3
    assert out == heedful.load(models / "translator").translate(given)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["translate", "nowhere", "x"], 4, "nowhere is not a model folder: it does not exist"),
        (["translate", "empty", "x"], 4, "is not a model folder: it has no config.json"),
        (["generate", "empty", "x"], 4, "is not a model folder: it has no config.json"),
        (["translate", "writer", "x"], 2, "is a language model; use `generate`"),
        (["generate", "translator", "x"], 2, "is a translator; use `translate`"),
        (["translate", "encoder", "x"], 2, "is an encoder; it does not translate"),
        (["generate", "bare", "x"], 2, "has no tokenizer.json"),
        (["translate", "translator", "x", "--beam", "4", "--temperature", "1"], 2, "give one or the other"),
        (["translate", "translator", "x", "--top-k", "4"], 2, "give a temperature"),
        (["generate", "writer", "x", "--min-length", "9", "--max-length", "5"], 2, "min_length 9 is more"),
        (["translate", "translator", "x", "--beam", "0"], 2, "beam"),
        (["translate", "translator", "x", "--device", "tpu"], 2, "unknown device 'tpu'"),
        (["translate", "translator", "x", "--prefix", "☃"], 2, "cannot write the prefix"),
        (["translate", "translator", "x", "--input", "in"], 2, "give one or the other"),
        (["translate", "translator", "--input", "nothing.txt"], 3, "nothing.txt: no such file"),
        (["translate", "translator", "x", "--output", "."], 2, "is a folder"),
    ],
)
def test_what_cannot_work_is_one_line_and_an_exit_code(
    words: list[str], code: int, said: str, command: Command, models: Path
) -> None:
    known = {path.name for path in models.iterdir()}
    found, out, told = command.run(*(models / word if word in known else word for word in words))
    assert (found, out) == (code, [])
    assert said in told
    assert len(told.strip().splitlines()) == 1


def test_bad_bytes_on_standard_input_stop_after_the_lines_before_them(command: Command, models: Path) -> None:
    given = b"3 May 1990\n4 May 1990\n5 \xff May\n6 May 1990\n"
    code, out, said = command.run("translate", models / "translator", given=given)
    assert (code, len(out)) == (3, 2)
    assert "heedful: standard input:3: byte offset 24: 0xff is not UTF-8" in said
    code, out, said = command.run("translate", models / "translator", "--on-bad-line", "skip", given=given)
    assert (code, len(out), out[2]) == (0, 4, "")
    assert "heedful: line 3: left empty: byte offset 24: 0xff is not UTF-8" in said


def test_a_line_of_a_megabyte_is_named_and_the_others_are_not_lost(command: Command, models: Path) -> None:
    given = b"3 May 1990\n" + b"x" * (1 << 20) + b"\n4 May 1990\n"
    code, out, said = command.run("translate", models / "translator", given=given)
    assert (code, len(out)) == (3, 1)
    assert "heedful: standard input:2: the line is longer than 1,000,000 bytes: break it up (fold -s)\n" in said
    code, out, _ = command.run("translate", models / "translator", "--on-bad-line", "skip", given=given)
    assert (code, len(out), out[1]) == (0, 3, "")


def test_nothing_in_is_nothing_out(command: Command, models: Path) -> None:
    assert command.run("translate", models / "translator", given=b"") == (0, [], "")
    assert command.run("generate", models / "writer", given=b"") == (0, [], "")


def test_an_empty_text_and_unknown_symbols_have_answers(command: Command, models: Path) -> None:
    assert command.run("translate", models / "translator", "") == (0, [""], "")
    code, out, said = command.run("translate", models / "translator", "☃☃")
    assert (code, len(out)) == (0, 1)
    assert "heedful: line 1: 2 of 2 tokens are unknown to the model" in said


def test_many_warnings_are_counted_not_repeated(command: Command, models: Path) -> None:
    code, out, said = command.run("translate", models / "translator", given="☃\n".encode() * 50)
    assert (code, len(out)) == (0, 50)
    assert len(said.splitlines()) == 21
    assert "more warnings like these" in said


def test_a_reader_that_leaves_ends_it_without_a_word(command: Command, models: Path) -> None:
    """As `| head` does."""
    closed = "read, write = os.pipe(); os.close(read); os.dup2(write, 1)"
    given = "\n".join(LINES).encode()
    for words in (["translate", models / "translator"], ["generate", models / "writer", "3 May"]):
        assert command.run(*words, given=given, before=closed) == (141, [], "")


def test_an_interruption_keeps_every_line_that_was_done(command: Command, models: Path) -> None:
    """Ctrl-C while a pipe stays open: what was written stays, whole."""
    waiting = "read, write = os.pipe(); os.write(write, open('in', 'rb').read()); os.dup2(read, 0)"
    given = "\n".join(LINES[:30]).encode() + b"\n"
    running = command.start("translate", models / "translator", given=given, before=waiting)
    out = command.folder / "out"
    running.wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") == 30)
    running.send(signal.SIGINT)
    done = running.wait()
    assert done.code == 130
    assert "Traceback" not in done.output
    assert out.read_bytes().count(b"\n") == 30


def test_a_file_appears_whole_or_not_at_all(command: Command, models: Path) -> None:
    (command.folder / "a.txt").write_bytes("\n".join(LINES[:20]).encode() + b"\nb\xffd\nlast\n")
    words = ["translate", models / "translator", "--input", "a.txt", "--output", "b.txt"]
    code, _, said = command.run(*words)
    assert code == 3
    assert "a.txt:21: byte offset" in said
    assert "the 20 lines done are in b.part.txt" in said
    assert not (command.folder / "b.txt").exists()
    assert len((command.folder / "b.part.txt").read_text().splitlines()) == 20
    code, _, _ = command.run(*words, "--on-bad-line", "skip")
    assert code == 0
    assert len((command.folder / "b.txt").read_text().splitlines()) == 22
    assert not (command.folder / "b.part.txt").exists()


def test_a_full_disk_is_one_line(command: Command, models: Path) -> None:
    (command.folder / "a.txt").write_text("\n".join(LINES * 4))
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)"  # noqa: E501
    words = ["translate", models / "translator", "--input", "a.txt", "--output", "b.txt", "--beam", "1"]
    code, _, said = command.run(*words, before=limited)
    assert code == 1
    assert "b.txt cannot be written: File too large" in said
    assert not (command.folder / "b.txt").exists()

"""Closed, full or ASCII-only standard streams are handled or end in one error line, never in a traceback."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from heedful.cli import standard_streams
from heedful.cli.table_console import TableConsole
from heedful.cli.text_io import LineStream, output_lines
from heedful.errors import HeedfulError, UsageError

CLOSED = "import os, sys; os.close({0}); sys.std{1} = None"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("one line — and no more\n", encoding="utf-8")
    return file


def test_closed_output_is_one_line(fork_server: Any, corpus: Path) -> None:
    done = fork_server.run("doctor", corpus, folder=corpus.parent, before=CLOSED.format(1, "out"))
    assert (done.code, done.output) == (1, "heedful: standard output cannot be written: Bad file descriptor\n")


def test_closed_messages_do_not_reach_the_next_file_opened(fork_server: Any, corpus: Path) -> None:
    words = ("doctor", corpus, "--write", "copy", "--debug")
    fork_server.run(*words[:4], folder=corpus.parent, before=CLOSED.format(2, "err"))
    assert (corpus.parent / "copy" / corpus.name).read_text(encoding="utf-8") == corpus.read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [("--help",), ("doctor", "text.txt")])
def test_a_terminal_in_ascii_gets_question_marks(fork_server: Any, corpus: Path, words: tuple[str, ...]) -> None:
    narrow = "import sys\nfor s in (sys.stdout, sys.stderr): s.reconfigure(encoding='ascii', errors='strict')"
    done = fork_server.run(*words, folder=corpus.parent, before=narrow)
    assert done.code == 0, done.output
    assert done.output.isascii()


def test_output_to_a_full_device_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(standard_streams.sys, "stdout", full)
        kept = os.dup(full.fileno())
        with pytest.raises(HeedfulError, match="standard output cannot be written: No space left on device"):
            standard_streams.write_output("text\n")
        os.close(kept)


def test_tables_for_a_reader_that_stopped_reading_end_as_other_output_does(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(standard_streams.sys, "stdout", closed)
        console = TableConsole()
        with pytest.raises(SystemExit) as ended:
            console.print("a table")
    assert ended.value.code == 141


def test_the_input_is_not_replaced_by_the_output(corpus: Path) -> None:
    link = corpus.with_name("link.txt")
    link.symlink_to(corpus)
    for output in (corpus, link, corpus.parent / "." / corpus.name):
        with pytest.raises(UsageError, match="is the input, which would be lost: name another file"):
            LineStream(None, corpus, output)
    LineStream(None, corpus, corpus.with_name("other.txt"))
    LineStream(None, Path("/dev/null"), Path("/dev/null"))


def test_a_device_is_written_and_stays_a_device() -> None:
    with output_lines(Path("/dev/null")) as write:
        write("text")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    with pytest.raises(HeedfulError, match="/dev/full cannot be written: No space left on device"):
        fill(Path("/dev/full"))


def fill(file: Path, lines: int = 1) -> None:
    with output_lines(file) as write:
        for number in range(lines):
            write(f"line {number}")


@pytest.mark.parametrize("name", ["out.txt", "out.txt.gz"])
def test_lines_kept_on_a_full_disk_are_counted(fork_server: Any, tmp_path: Path, name: str) -> None:
    script = """
import os, random, resource, sys
sys.path.insert(0, "")
from pathlib import Path
from heedful.cli.text_io import output_lines
from heedful.errors import HeedfulError
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    with output_lines(Path(sys.argv[1])) as write:
        for number in range(20_000):
            write(str(random.random()))
except HeedfulError as error:
    Path("error").write_text(str(error))
"""
    fork_server.run_script(script, name, folder=tmp_path)
    claimed = (tmp_path / "error").read_text()
    assert claimed.startswith(f"{name} cannot be written: File too large; the first ")
    count = int(claimed.split("the first ")[1].split()[0].replace(",", ""))
    if name == "out.txt":
        assert (tmp_path / "out.part.txt").read_bytes().count(b"\n") == count
        assert (tmp_path / "out.part.txt").read_bytes().endswith(b"\n")
    assert count > 500

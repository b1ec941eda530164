"""`heedful train` with faulty files: one clear line, the right exit code, no files overwritten or left."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful

LINES = [f"the {number} cats sat on mat {number * 7 % 13}" for number in range(120)]
SETTINGS = (
    "tokenizer.vocabulary=300",
    "model.width=16",
    "model.heads=2",
    "model.layers=1",
    "training.batch_tokens=256",
    "training.context=16",
)
OPTIONS = ["--steps", "2", "--out", "run", "--device", "cpu", *(f"--set={setting}" for setting in SETTINGS)]
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(
    fork_server: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Run the command in a folder with valid files; returns its exit code and output."""
    aside = tmp_path_factory.mktemp("aside")
    cache = f"import os; os.environ['HEEDFUL_CACHE'] = {str(aside / 'cache')!r}"
    monkeypatch.chdir(tmp_path)
    write("a.en", LINES)
    write("a.de", [line.upper() for line in LINES])

    def command(*words: str, options: list[str] = OPTIONS) -> tuple[int, str]:
        files = {"log": aside / "stderr", "output": aside / "stdout"}
        done = fork_server.run(*words, *options, folder=tmp_path, before=cache, **files)
        return done.code, done.output

    return command


def write(name: str, lines: list[str], *, end: str = "\n", mark: str = "") -> None:
    Path(name).write_bytes((mark + "".join(line + end for line in lines)).encode())


def with_line_40(line: bytes) -> bytes:
    lines = [line.encode() for line in LINES]
    lines[39] = line
    return b"\n".join([*lines, b""])


def files_here() -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in Path().rglob("*") if file.is_file()}


def refusal(run: Run, *words: str, code: int = 3) -> str:
    """The error line of a command that must not change any file."""
    before = files_here()
    exit_code, output = run(*words)
    assert exit_code == code, output
    assert files_here() == before
    assert not Path("run").exists()
    assert "Traceback" not in output
    last = output.splitlines()[-1]
    assert last.startswith("heedful: ")
    assert output.count("heedful: ") == 1
    return last


@pytest.mark.parametrize(
    ("line", "what", "kind"),
    [
        (b"caf\xe9", "byte offset {}: 0xe9 is not UTF-8", "lines that are not UTF-8"),
        (b"caf\0", "byte offset {}: a NUL byte", "lines with a NUL byte"),
    ],
)
@pytest.mark.parametrize("task", ["translate", "generate", "fill"])
def test_a_bad_line_stops_training_or_is_skipped_and_reported_in_the_card(
    line: bytes, what: str, kind: str, task: str, run: Run
) -> None:
    Path("bad.de").write_bytes(with_line_40(line))
    files = ["a.en", "bad.de"] if task == "translate" else ["bad.de"]
    offset = len("\n".join(LINES[:39])) + 1 + 3
    assert f"bad.de:40: {what.format(offset)}" in refusal(run, "train", task, *files)
    code, output = run("train", task, *files, "--on-bad-line", "skip")
    assert code == 0, output
    singular = kind.replace("lines that are", "line that is").replace("lines with", "line with")
    assert f"1 {singular} (dropped), first at bad.de:40" in output
    assert f"| dropped: {kind} | 1, first at bad.de:40 |" in Path("run/card.md").read_text()


@pytest.mark.slow
def test_line_endings_and_byte_order_marks_do_not_change_the_model(run: Run) -> None:
    models = []
    for name, end, mark in (("lf", "\n", ""), ("crlf", "\r\n", ""), ("bom", "\n", "\ufeff")):
        write("x.en", LINES, end=end, mark=mark)
        write("x.de", [line.upper() for line in LINES], end=end, mark=mark)
        for task, files in (("translate", ["x.en", "x.de"]), ("generate", ["x.en"])):
            code, output = run("train", task, *files, "--out", f"{name}-{task}", options=OPTIONS[:2] + OPTIONS[4:])
            assert code == 0, output
        models.append([heedful.load(f"{name}-{task}") for task in ("translate", "generate")])
    for others in models[1:]:
        for model, copy in zip(models[0], others, strict=True):
            weights = copy.model.state_dict()
            assert all(torch.equal(weight, weights[name]) for name, weight in model.model.state_dict().items())
            assert model.tokenizers == copy.tokenizers


def test_unusable_files_are_refused(run: Run) -> None:
    write("short.de", LINES[:7])
    write("blank.en", [""] * 120)
    write("long.en", ["x " * 600] * 120)
    write("four.tsv", ["de\ten", *[f"Haus {number} da\thouse {number} there" for number in range(1, 5)]])
    write("one.tsv", ["de\ten", "Hallo\thello"])
    Path("empty.txt").touch()
    Path("none").mkdir()
    Path("none/picture.png").write_bytes(b"\x89PNG")
    cases = {
        ("translate", "a.en", "short.de"): "has 120 lines but",
        ("translate", "a.en", "empty.txt"): "empty.txt is empty",
        ("generate", "empty.txt"): "empty.txt is empty",
        ("generate", "none"): "none is a folder without text files",
        ("translate", "blank.en", "a.de"): "nothing usable in",
        ("translate", "long.en", "a.de"): "nothing is left to train on: 120 pairs longer than 256 tokens",
        ("translate", "four.tsv"): "name a file (--valid) or hold out more (--set data.held_out=0.2)",
        ("translate", "one.tsv"): "so little that all is held out",
        ("translate", "a.en", "a.en"): "a.en is given as source and as target",
        ("translate", "a.en"): "pairs come as two line-aligned text files",
        ("translate", "none", "a.de"): "is a folder: a file is needed here",
        ("translate", "a.en", "nowhere.de"): "nowhere.de: no such file",
        ("generate", "nowhere"): "nowhere: no such file",
    }
    for words, message in cases.items():
        assert message in refusal(run, "train", *words), words


def test_files_that_are_not_text_are_refused(run: Run) -> None:
    with zipfile.ZipFile("a.docx", "w") as archive:
        archive.writestr("word.xml", "text" * 100)
    Path("plain.gz").write_text("just text\n")
    Path("wide.txt").write_bytes("\n".join(LINES).encode("utf-16"))
    Path("data.txt").write_bytes(bytes(range(256)) * 40)
    cases = {
        "a.docx": "not plain text but a zip archive or office document: save it as plain text",
        "plain.gz": "is not a valid .gz file",
        "wide.txt": "not plain text but UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
        "data.txt": "looks like a binary file",
    }
    for name, message in cases.items():
        assert message in refusal(run, "train", "generate", name), name


@pytest.mark.parametrize("option", ["--valid", "--test"])
def test_held_out_files_are_checked_before_training(option: str, run: Run) -> None:
    Path("bad.de").write_bytes(with_line_40(b"caf\xe9"))
    write("short.de", LINES[:7])
    cases = {
        ("a.en", "nowhere.de"): "nowhere.de: no such file",
        ("a.en", "bad.de"): "bad.de:40: byte offset",
        ("a.en", "short.de"): "has 120 lines but",
    }
    for files, message in cases.items():
        options = [word for file in files for word in (option, file)]
        assert message in refusal(run, "train", "translate", "a.en", "a.de", *options), files
    half = refusal(run, "train", "translate", "a.en", "a.de", option, "a.en", "a.de", code=2)
    assert f"{option} a.en {option} FILE" in half
    assert "bad.de:40" in refusal(run, "train", "generate", "a.en", option, "bad.de")


def test_a_test_file_with_a_bad_line_is_evaluated_without_it(run: Run) -> None:
    Path("bad.de").write_bytes(with_line_40(b"caf\xe9"))
    for task, files in (("translate", ["a.en", "bad.de"]), ("generate", ["bad.de"])):
        out = ["--out", task, "--on-bad-line", "skip"]
        trained = ["a.en", "a.de"] if task == "translate" else ["a.en"]
        words = ["train", task, *trained, *(word for file in files for word in ("--test", file)), *out]
        code, output = run(*words, options=OPTIONS[:2] + OPTIONS[4:])
        assert code == 0, output
        assert Path(task, "card.md").is_file()
        assert run("evaluate", task, *files, options=[])[0] == 3
        assert run("evaluate", task, *files, "--on-bad-line", "skip", options=[])[0] == 0


def test_swapped_files_are_detected_by_their_scripts(run: Run) -> None:
    write("a.ru", [f"кошки номер {number} сидели на коврике" for number in range(120)])
    write("v.en", LINES[:9])
    write("v.ru", [f"собака номер {number} сидит" for number in range(9)])
    output = refusal(run, "train", "translate", "a.en", "a.ru", "--valid", "v.ru", "--valid", "v.en")
    assert "v.ru is Cyrillic, but " in output
    assert "a.en is Latin: are the files in the wrong order?" in output


def test_existing_folders_are_not_overwritten(run: Run) -> None:
    Path("full").mkdir()
    Path("full/kept").write_text("precious")
    options = OPTIONS[:2] + OPTIONS[4:]
    for out, words in (("full", "not empty"), ("full/kept", "not empty"), ("full/kept/below", "cannot write")):
        before = files_here()
        code, output = run("train", "generate", "a.en", "--out", out, options=options)
        assert code == 2
        assert words in output.splitlines()[-1]
        assert files_here() == before


MEASURED = """
import resource, sys
from heedful.cli.app import main
import heedful.training.run
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    main()
finally:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("kind", ["a line of 100 MB", "a bomb"])
def test_a_huge_line_is_refused_in_little_memory(kind: str, fork_server: Any, run: Run, tmp_path: Path) -> None:
    if kind == "a bomb":
        Path("big.gz").write_bytes(gzip.compress(b"good\n") + gzip.compress(b"x" * 2**26) * 16)
    else:
        Path("big.txt").write_bytes(b"good\n" + b"x" * 100_000_000 + b"\ngood\n")
    name = "big.gz" if kind == "a bomb" else "big.txt"
    words, output = ["train", "generate", name, *OPTIONS], tmp_path / "output"
    done = fork_server.run_script(MEASURED, *words, folder=tmp_path, output=output)
    assert done.code == 3
    assert "big" in done.output
    assert ":2: byte offset 5: the line is longer than 1,000,000 bytes" in done.output
    assert int(output.read_text()) < 64
    assert not Path("run").exists()

"""Using what was trained, from the shell, as a person would."""

from __future__ import annotations

import gzip
import json
import lzma
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.data.dates import write_dates

SETTINGS = ("tokenizer.kind=characters", "model.width=32", "model.heads=2", "model.layers=1", "training.warmup=5")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator of dates and a writer of them, trained for a moment."""
    folder = tmp_path_factory.mktemp("answering")
    dates = write_dates(folder / "data", train=600, valid=40, test=40)
    sides = [str(dates / f"train.{side}") for side in ("source", "target")]
    valid = tuple(str(dates / f"valid.{side}") for side in ("source", "target"))
    common: dict[str, Any] = {"settings": SETTINGS, "steps": 40, "device": "cpu"}
    heedful.train("translate", *sides, valid=valid, out=str(folder / "translator"), **common)
    heedful.train("generate", sides[0], valid=valid[:1], out=str(folder / "writer"), **common)
    return folder


def command(*words: str | Path, given: str = "", cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from heedful.cli.app import main; main()", *map(str, words)],
        cwd=cwd, input=given, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_translator_answers_arguments_lines_and_files_alike(trained: Path, tmp_path: Path) -> None:
    texts = (trained / "data" / "test.source").read_text().splitlines()[:5]
    expected = heedful.load(trained / "translator").translate(texts)
    spoken = command("translate", trained / "translator", *texts, cwd=tmp_path)
    assert (spoken.returncode, spoken.stdout.splitlines()) == (0, expected)
    piped = command("translate", trained / "translator", given="\n".join(texts), cwd=tmp_path)
    assert piped.stdout.splitlines() == expected
    (tmp_path / "in.xz").write_bytes(lzma.compress("\n".join(texts).encode()))
    filed = command("translate", trained / "translator", "--input", "in.xz", "--output", "out.gz", cwd=tmp_path)
    assert filed.returncode == 0, filed.stderr
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()).decode().splitlines() == expected


def test_json_lines_tell_scores_words_and_rivals(trained: Path, tmp_path: Path) -> None:
    done = command("translate", trained / "translator", "--json", "--n-best", "3", given="3 May 1990\n\n", cwd=tmp_path)
    first, blank = (json.loads(line) for line in done.stdout.splitlines())
    assert first["source"] == "3 May 1990"
    assert [word["text"] for word in first["words"]] == first["text"].split()
    assert first["score"] >= first["rivals"][0]["score"] >= first["rivals"][1]["score"]
    assert (blank["text"], blank["words"]) == ("", [])
    plain = command("translate", trained / "translator", "--n-best", "3", "3 May 1990", cwd=tmp_path)
    assert plain.stdout == "\t".join(each["text"] for each in (first, *first["rivals"])) + "\n"


def test_a_writer_goes_on_from_a_prompt_and_from_lines(trained: Path, tmp_path: Path) -> None:
    options = ["--seed", "7", "--max-length", "30"]
    spoken = command("generate", trained / "writer", "3 M", *options, cwd=tmp_path)
    assert spoken.stdout == heedful.load(trained / "writer").generate("3 M", seed=7, max_length=30) + "\n"
    lines = command("generate", trained / "writer", *options, given="3 M\nMon\n\n", cwd=tmp_path)
    assert len(lines.stdout.splitlines()) == 3
    assert lines.stdout.splitlines()[0] == spoken.stdout.splitlines()[0]
    whole = command("generate", trained / "writer", "--json", *options, given="3 M\n", cwd=tmp_path)
    assert "3 M" + json.loads(whole.stdout)["text"] + "\n" == spoken.stdout


def test_a_pipe_is_answered_line_by_line_while_it_stays_open(trained: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", "from heedful.cli.app import main; main()", "translate", trained / "translator"]
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for text in ("3 May 1990\n", "4 May 1990\n"):
            process.stdin.write(text)
            process.stdin.flush()
            assert process.stdout.readline()
        process.stdin.close()
        assert process.stdout.read() == ""
        assert process.wait(timeout=30) == 0


def test_help_comes_at_once_and_a_translation_waits_for_little_but_torch(trained: Path, tmp_path: Path) -> None:
    """Nothing of torch's compiler is imported on the way to an answer: that alone would take two seconds."""
    script = (
        "import sys; from heedful.cli.app import main\n"
        "sys.argv = ['heedful', 'translate', sys.argv[1], '3 May 1990']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "slow = {'sympy', 'torch._dynamo', 'torch._inductor', 'matplotlib', 'sacrebleu', 'babel'}\n"
        "print(sorted(slow & {*sys.modules}))"
    )
    words = [sys.executable, "-c", script, str(trained / "translator")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    script = "import sys; sys.argv = ['heedful', '--help']; from heedful.cli.app import main; main()"
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", script], capture_output=True, text=True, check=False
    )
    assert "torch" not in done.stderr
    assert time.perf_counter() - begun < 5

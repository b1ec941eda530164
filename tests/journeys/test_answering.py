"""`heedful translate` and `heedful generate` as typed in a shell."""

from __future__ import annotations

import gzip
import json
import lzma
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import heedful
from heedful.cli.app import main
from heedful.data.dates_corpus import dates_corpus
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

PAIRS = dates_corpus(train=1, valid=300, test=1).valid
TEXTS = [pair.source for pair in PAIRS]
Command = Callable[..., Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained translator and an untrained language model."""
    folder = tmp_path_factory.mktemp("answering")
    tokenizer = Tokenizer.train(TEXTS, TokenizerConfig(kind="unigram", vocabulary=300))
    torch.manual_seed(4)
    for name in ("translator", "writer"):
        size: dict[str, Any] = {"vocabulary": len(tokenizer), "width": 16, "heads": 2, "layers": 1}
        model = heedful.build(f"laptop-{name}", **size, tie_output=False)
        model.heads.next_token.weight.data *= 3
        tokenizer.save(heedful.save(model, folder / name) / "tokenizer.json")
    return folder


@pytest.fixture(scope="module")
def lines_writer(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model that continues every prompt with line breaks."""
    folder = tmp_path_factory.mktemp("lines") / "writer"
    tokenizer = Tokenizer.train(["KING:\nSpeak.\n"] * 9, TokenizerConfig(kind="characters", vocabulary=50))
    model = heedful.build("laptop-writer", vocabulary=len(tokenizer), width=16, heads=2, layers=1, tie_output=False)
    for weight, value in (
        (model.decoder.norm.weight, 0),
        (model.decoder.norm.bias, 1),
        (model.heads.next_token.weight, 0),
    ):
        torch.nn.init.constant_(weight, value)
    model.heads.next_token.weight.data[tokenizer.encode(["\n"])[0][-1]] = 2.0
    tokenizer.save(heedful.save(model, folder) / "tokenizer.json")
    return folder


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run `heedful` in a temporary folder, with this text as standard input."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str | Path, stdin: str = "") -> Done:
        Path("stdin").write_text(stdin, encoding="utf-8")
        with Path("stdin").open(encoding="utf-8") as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            monkeypatch.setattr(sys, "argv", ["heedful", *map(str, words)])
            with pytest.raises(SystemExit) as end:
                main()
        return Done(int(end.value.code or 0), *capfd.readouterr())

    return run


def test_arguments_standard_input_and_files_give_the_same_translations(models: Path, command: Command) -> None:
    texts = TEXTS[:5]
    expected = heedful.load(models / "translator").translate(texts)
    from_arguments = command("translate", models / "translator", *texts)
    assert (from_arguments.code, from_arguments.out.splitlines()) == (0, expected)
    piped = command("translate", models / "translator", stdin="\n".join(texts))
    assert piped.out.splitlines() == expected
    Path("in.xz").write_bytes(lzma.compress("\n".join(texts).encode()))
    filed = command("translate", models / "translator", "--input", "in.xz", "--output", "out.gz")
    assert filed.code == 0, filed.err
    assert gzip.decompress(Path("out.gz").read_bytes()).decode().splitlines() == expected


def test_json_lines_hold_scores_words_and_alternatives(models: Path, command: Command) -> None:
    done = command("translate", models / "translator", "--json", "--n-best", "3", stdin="3 May 1990\n\n")
    first, blank = (json.loads(line) for line in done.out.splitlines())
    assert first["source"] == "3 May 1990"
    assert [word["text"] for word in first["words"]] == first["text"].split()
    assert first["score"] >= first["alternatives"][0]["score"] >= first["alternatives"][1]["score"]
    assert (blank["text"], blank["words"]) == ("", [])
    plain = command("translate", models / "translator", "--n-best", "3", "3 May 1990")
    assert plain.out == "\t".join(result["text"] for result in (first, *first["alternatives"])) + "\n"


def test_a_prompt_and_lines_are_continued(models: Path, command: Command) -> None:
    options = ["--seed", "7", "--max-length", "30"]
    prompted = command("generate", models / "writer", "3 M", *options)
    assert prompted.out == heedful.load(models / "writer").generate("3 M", seed=7, max_length=30) + "\n"
    lines = command("generate", models / "writer", *options, stdin="3 M\nMon\n\n")
    assert len(lines.out.splitlines()) == 3
    assert lines.out.splitlines()[0] == prompted.out.splitlines()[0]
    assert lines.out.splitlines()[2] == ""  # a blank line stays blank
    whole = command("generate", models / "writer", "--json", *options, stdin="3 M\n")
    assert "3 M" + json.loads(whole.out)["text"] + "\n" == prompted.out


def test_continuations_with_line_breaks_are_printed_whole(lines_writer: Path, command: Command) -> None:
    """A model whose texts have many lines would give empty answers if they ended at the first line break."""
    writer = ("generate", lines_writer, "--max-length", "3")
    text = "KING:\n\n\n"
    assert command(*writer, "KING:").out == f"{text}\n"
    assert command(*writer, "KING:", "--n-best", "2").out == f"{text}\n---\n{text}\n"
    assert command(*writer, "KING:", "--beam", "2").out == f"{text}\n"
    piped = command(*writer, "--n-best", "2", stdin="KING:\nKING:\n")
    assert piped.out == 2 * "KING:   \tKING:   \n"
    assert command(*writer, "--stop", "\n", stdin="KING:\n").out == "KING:\n"


def test_an_open_pipe_is_answered_line_by_line(models: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", "from heedful.cli.app import main; main()", "translate", models / "translator"]
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


def test_help_does_not_import_torch_and_translate_no_compiler(models: Path, tmp_path: Path) -> None:
    """Importing torch's compiler alone would take two seconds."""
    script = (
        "import sys; from heedful.cli.app import main\n"
        "sys.argv = ['heedful', 'translate', sys.argv[1], '3 May 1990']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "slow = {'sympy', 'torch._dynamo', 'torch._inductor', 'matplotlib', 'sacrebleu', 'babel'}\n"
        "print(sorted(slow & {*sys.modules}))"
    )
    words = [sys.executable, "-c", script, str(models / "translator")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    script = "import sys; sys.argv = ['heedful', '--help']; from heedful.cli.app import main; main()"
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", script], capture_output=True, text=True, check=False
    )
    assert "torch" not in done.stderr
    assert time.perf_counter() - start < 5

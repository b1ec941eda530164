"""The `heedful look`, `embed --words` and `compare` commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.loading import wrap_model

from .untrained_translator import TEXTS, save_untrained_translator

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_untrained_translator(tmp_path_factory.mktemp("model") / "translate-1")


def test_a_look_prints_text_and_suggests_the_next_command(
    heedful_command: Command, model: Path, tmp_path: Path
) -> None:
    look = heedful_command("look", model, TEXTS[0], "--target", TEXTS[1], "--lens", cwd=tmp_path)
    assert look.returncode == 0, look.stderr
    assert f"in   {TEXTS[0]}\nout  {TEXTS[1]}\n" in look.stdout
    assert "attention of decoder.0.cross, mean of all heads" in look.stdout
    assert "what each layer would have said" in look.stdout
    assert f"next: heedful look {model} '{TEXTS[0]}' --out look.html; or switch a part off" in look.stderr
    head = heedful_command("look", model, TEXTS[0], "--part", "encoder.1.attention", "--head", "2", cwd=tmp_path)
    assert "attention of encoder.1.attention, head 2" in head.stdout


def test_files_and_json_equal_the_look_in_python(heedful_command: Command, model: Path, tmp_path: Path) -> None:
    for name in ("look.html", "look.svg", "look.json"):
        done = heedful_command("look", model, TEXTS[0], "--without", "positions", "--out", name, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert f"{name} written" in done.stderr
    changed = heedful.load(model, device="cpu").look(TEXTS[0], interventions=[heedful.Ablate("positions")])
    expected = json.loads(json.dumps(changed.to_json("list")))
    outputs = json.loads((tmp_path / "look.json").read_text())["outputs"]
    assert [(output["position"], output["label"], output["text"], output["words"]) for output in outputs] == [
        (output["position"], output["label"], output["text"], output["words"]) for output in expected["outputs"]
    ]
    probabilities = [output["probability"] for output in expected["outputs"]]
    assert [output["probability"] for output in outputs] == pytest.approx(
        probabilities
    )  # bitwise equal with the same number of threads
    assert expected["interventions"] == ["positions off"]
    plain = heedful_command("look", model, TEXTS[0], "--json", cwd=tmp_path)
    assert json.loads(plain.stdout)["target"] != expected["target"]


def test_all_parts_are_listed_by_kind(heedful_command: Command, model: Path, tmp_path: Path) -> None:
    listed = heedful_command("look", model, "--list", cwd=tmp_path).stdout
    assert "cross-attention (with its heads)\n  decoder.0.cross   .head.0 to .head.3\n" in listed
    names = json.loads(heedful_command("look", model, "--list", "--json", cwd=tmp_path).stdout)
    assert names["attention"][0] == {"name": "encoder.0.attention", "heads": 4}
    every = {part["name"] for parts in names.values() for part in parts}
    assert every == {name for name in heedful.part_names(heedful.load(model).model) if ".head." not in name}


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["a", "--part", "decoder.1.cros"], 2, "did you mean 'decoder.1.cross', "),
        (["a", "--without", "decoder.1.cros"], 2, "All are listed by heedful look MODEL --list"),
        (["a", "--part", "decoder.1.cross", "--head", "4"], 2, "no head 4 in decoder.1.cross: it has heads 0 to 3"),
        (["a", "--without", "decoder.1.cross.head.9"], 2, "no head 9 in decoder.1.cross: it has heads 0 to 3"),
        (["a", "--out", "look.gif"], 2, "unknown kind of file '.gif'; use one of .html, .png, .svg, .pdf, .json"),
        (["a", "--out", "no/look.html"], 2, "no/look.html cannot be written: there is no folder no"),
        (["a", "--out", "look.html", "--part", "decoder.7.cross"], 2, "did you mean 'decoder.1.cross'"),
        (["a", "--out", "look.json", "--head", "1"], 2, "JSON holds every attention; leave --part and --head out"),
        (["--out", "look.html"], 2, "--out takes one look: give the text on the command line"),
        (["a " * 3000], 2, "has 3,000 tokens, and the model reads 1,023 at once; look at a part of it"),
        (["a", "--interventions", "patch.json"], 2, "patch from a text of the same length, or name the tokens"),
        (["a", "--top", "0"], 2, "top must be positive, got 0"),
    ],
)
def test_a_user_error_is_one_line(
    heedful_command: Command, model: Path, tmp_path: Path, options: list[str], code: int, message: str
) -> None:
    patch = {"kind": "patch", "part": "encoder.0", "text": TEXTS[0]}
    (tmp_path / "patch.json").write_text(json.dumps([patch]))
    done = heedful_command("look", model, *options, cwd=tmp_path)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("heedful: with ")]
    assert (done.returncode, done.stdout, len(lines)) == (code, "", 1), done.stderr
    assert message in lines[0]


def test_a_model_stored_only_for_ctranslate2_supports_neither_look_nor_interventions(
    heedful_command: Command, model: Path, tmp_path: Path
) -> None:
    assert heedful_command("export", model, "ct2", "--to", "ctranslate2", cwd=tmp_path).returncode == 0
    for words in (("translate", "ct2", "a", "--without", "positions"), ("look", "ct2", "a")):
        done = heedful_command(*words, cwd=tmp_path)
        assert (done.returncode, len(done.stderr.splitlines())) == (4, 1)
        assert "ct2 is a CTranslate2 model, which ctranslate2 alone runs" in done.stderr
    done = heedful_command("translate", model, "a", "--without", "positions", "--engine", "ctranslate2", cwd=tmp_path)
    assert "interventions change values inside the model's own modules; use engine torch" in done.stderr


def test_a_look_accepts_empty_and_unusual_texts(heedful_command: Command, model: Path, tmp_path: Path) -> None:
    files = ("--out", "look.html"), ("--out", "look.svg"), ()
    for options in files:
        for text in ("", " ", "zebra \x1b[31m"):
            done = heedful_command("look", model, text, "--target", "", *options, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert "\x1b" not in done.stdout


def test_words_have_contextual_vectors(heedful_command: Command, model: Path, tmp_path: Path) -> None:
    texts = ("a small dog runs", "the red dog rides")
    done = heedful_command("embed", model, *texts, "--words", "--layer", "0", cwd=tmp_path)
    number, word, start, end, vector = done.stdout.splitlines()[2].split("\t")
    assert (number, word, start, end, len(vector.split())) == ("1", "dog", "8", "11", 32)
    cosine, text = heedful_command("embed", model, *texts, "--word", "Dog.", "--compare", cwd=tmp_path).stdout.split(
        "\t"
    )
    assert (text, -1 <= float(cosine) < 0.9999) == ("the red dog rides\n", True)
    by_line = heedful_command("embed", model, *texts, "--word", "dog", "--json", cwd=tmp_path).stdout.splitlines()
    assert [[word["text"] for word in json.loads(line)["words"]] for line in by_line] == [["dog"], ["dog"]]
    assert heedful_command("embed", model, *texts, "--words", "--output", "w.npy", cwd=tmp_path).returncode == 0
    assert np.load(tmp_path / "w.npy").shape == (8, 32)
    for options, message in (
        (["--words", "--compare"], "name it with --word"),
        (["--word", "cat", "--compare"], "'cat' occurs 0 times in these texts: --compare takes at least two"),
        (["--words", "--layer", "5"], "layer 5: the layers of this model are 0 to 1, or -1 for the last"),
        (["--layer", "1"], "--layer is for --words or --word"),
    ):
        done = heedful_command("embed", model, *texts, *options, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    torch.manual_seed(3)
    tokenizers = heedful.load(model, device="cpu").tokenizers
    network = heedful.build("recurrent-translator", vocabulary=len(tokenizers[0]), width=32).eval()
    folder: Path = wrap_model(network, tokenizers).save(tmp_path_factory.mktemp("model") / "recurrent-1")
    return folder


def test_two_models_are_compared_on_a_text_and_on_files(
    heedful_command: Command, model: Path, recurrent: Path, tmp_path: Path
) -> None:
    done = heedful_command("compare", model, recurrent, TEXTS[0], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "translate-1" in done.stdout
    assert "attention of cross, mean of all heads" in done.stdout
    assert "next: heedful compare" in done.stderr
    assert heedful_command("compare", model, recurrent, TEXTS[0], "--out", "c.html", cwd=tmp_path).returncode == 0
    assert "recurrent-1" in (tmp_path / "c.html").read_text()
    for name in ("test.en", "test.de"):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in TEXTS * 15))
    files = ("--data", "test.en", "--data", "test.de")
    table = heedful_command("compare", model, recurrent, *files, cwd=tmp_path)
    assert table.returncode == 0, table.stderr
    assert table.stdout.splitlines()[:3] == [
        table.stdout.splitlines()[0], "A  translate-1", "B  recurrent-1",
    ]  # fmt: skip
    result = json.loads(heedful_command("compare", model, recurrent, *files, "--json", cwd=tmp_path).stdout)
    assert [bucket["texts"] for bucket in result["buckets"]] == [15, 15]
    for words, message in (
        ([model, recurrent], "give either a text, or files with --data"),
        ([model, recurrent, "a", *files], "give either a text, or files with --data"),
        ([model, recurrent, "a", "--out", "c.gif"], "unknown kind of file '.gif'"),
        ([model, recurrent, *files, "--out", "c.html"], "a comparison on files is written as .json"),
        ([model, recurrent, "a", "--columns", "1,2"], "--columns is for --data"),
    ):
        done = heedful_command("compare", *words, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr

"""The `heedful explain` command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heedful

from .untrained_translator import TEXTS, save_untrained_translator

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_untrained_translator(tmp_path_factory.mktemp("model") / "translate-1")


def test_a_word_is_explained_by_every_method_with_its_faithfulness(
    heedful_command: Command, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "valid.txt").write_text("\n".join(TEXTS) + "\n")
    done = heedful_command(
        "explain", model, TEXTS[0], "--target", TEXTS[1], "--word", "1", "--validation", "valid.txt", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "why men (word 1), probability" in done.stdout
    numbers = done.stdout.partition("faithful on this text")[2].splitlines()[1:]
    for method in heedful.ATTRIBUTION_METHODS:
        (line,) = [line for line in numbers if line.startswith(method)]
        assert line.count(" to ") == 2, "an interval on this text and one on the file"


def test_files_and_json_equal_the_explanation_in_python(heedful_command: Command, model: Path, tmp_path: Path) -> None:
    words = ("explain", model, TEXTS[0], "--target", "two men", "--method", "occlusion", "--method", "rollout")
    expected = heedful.load(model, device="cpu").explain(TEXTS[0], "two men", methods=["occlusion", "rollout"])
    for name in ("why.html", "why.svg", "why.json"):
        done = heedful_command(*words, "--out", name, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert f"{name} written" in done.stderr
    printed = json.loads(heedful_command(*words, "--json", cwd=tmp_path).stdout)
    for content in (printed, json.loads((tmp_path / "why.json").read_text())):
        assert [method["name"] for method in content["methods"]] == ["occlusion", "rollout"]
        assert content["methods"][1]["scores"][0] == pytest.approx(expected.attributions["rollout"].scores[0], abs=1e-5)
    off = heedful_command(*words, "--json", "--no-faithfulness", "--without", "decoder.0.cross", cwd=tmp_path)
    content = json.loads(off.stdout)
    assert (content["interventions"], content["faithfulness"]) == (["decoder.0.cross off"], None)
    assert content["methods"][0]["scores"] != printed["methods"][0]["scores"]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["a", "--target", "a red dog", "--word", "3"], 2, "the output has no word 3: its words are 0 to 2"),
        (["a", "--method", "oclusion"], 2, "did you mean 'occlusion'?"),
        (["a", "--out", "why.gif"], 2, "unknown kind of file '.gif'; use one of .html, .png, .svg, .pdf, .json"),
        (["--out", "why.html"], 2, "--out takes one explanation: give the text on the command line"),
        (["a", "--validation", "none.txt"], 3, "none.txt"),
        (["a " * 3000], 2, "has 3,000 tokens, and the model reads 1,023 at once"),
        (["a " * 1000, "--target", "a dog"], 2, "more than 1,000,000; explain one word of the output, or a shorter"),
        (["a", "--without", "decoder.1.cros"], 2, "All are listed by heedful look MODEL --list"),
    ],
)
def test_a_user_error_is_one_line(
    heedful_command: Command, model: Path, tmp_path: Path, options: list[str], code: int, message: str
) -> None:
    done = heedful_command("explain", model, *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("heedful: with ")]
    assert message in line

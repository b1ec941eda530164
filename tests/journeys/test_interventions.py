"""Interventions as command-line options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.loading import wrap_model
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_kinds import TokenizerConfig

TEXTS = ["a small dog runs in the green park", "two men ride a red bicycle by the river"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer.train(TEXTS * 3, TokenizerConfig(kind="words", vocabulary=40))
    torch.manual_seed(2)
    network = heedful.build("laptop-translator", vocabulary=len(tokenizer), width=32, heads=4, layers=2).eval()
    folder: Path = wrap_model(network, (tokenizer,)).save(tmp_path_factory.mktemp("model") / "translate-1")
    return folder


def test_an_ablation_applies_to_one_command_and_is_printed(
    heedful_command: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    plain = heedful_command("translate", model, TEXTS[0], cwd=tmp_path)
    off = heedful_command("translate", model, TEXTS[0], "--without", "decoder.*.cross", "--without", "positions",
                          cwd=tmp_path)  # fmt: skip
    assert off.returncode == 0, off.stderr
    assert "with decoder.*.cross off; positions off; by the model's own modules" in off.stderr
    again = heedful_command("translate", model, TEXTS[0], cwd=tmp_path)
    assert (again.stdout, again.stderr) == (plain.stdout, plain.stderr)
    (tmp_path / "changes.json").write_text('[{"kind": "ablate", "part": "decoder.*.cross"}, '
                                           '{"kind": "ablate", "part": "positions"}]')  # fmt: skip
    by_file = heedful_command("translate", model, TEXTS[0], "--interventions", "changes.json", cwd=tmp_path)
    assert by_file.stdout == off.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--without", "decoder.2.cros"], "no part of this model is called 'decoder.2.cros'; did you mean"),
        (["--without", "decoder.0.cross.head.7"], "no head 7 in decoder.0.cross: it has heads 0 to 3"),
        (["--without", "positions", "--int8"], "leave out int8"),
        (["--interventions", "missing.json"], "missing.json cannot be read: No such file"),
        (["--interventions", "bad.json"], "bad.json: 0.ablate: unknown setting 'hedas'; "),
        (["--interventions", "half.json"], "half.json is not valid JSON: "),
    ],
)
def test_a_user_error_is_one_line(
    heedful_command: Callable[..., Any], model: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    (tmp_path / "bad.json").write_text('[{"kind": "ablate", "part": "decoder.0", "hedas": [1]}]')
    (tmp_path / "half.json").write_text('[{"kind": "abl')
    typed = heedful_command("translate", model, TEXTS[0], *options, cwd=tmp_path)
    assert typed.returncode in (2, 3)
    *notices, line = typed.stderr.splitlines()
    assert message in line
    assert not notices or "--int8" in options  # decoding refuses --int8, after the interventions are printed
    assert "Traceback" not in typed.stderr
    assert typed.stdout == ""

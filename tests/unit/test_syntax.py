"""Messages write arguments, settings and calls in the user's interface: Python, or the command line."""

from __future__ import annotations

from pathlib import Path

from heedful.syntax import argument, by_interface, call, command_line, settings_argument


def test_python_is_written_outside_of_a_command() -> None:
    assert argument("beam", 4) == "beam=4"
    assert argument("start_from", Path("a b")) == 'start_from="a b"'
    assert argument("valid", ["dev.en", "dev.de"]) == 'valid=["dev.en", "dev.de"]'
    assert argument("architecture") == "architecture"
    assert settings_argument({"model.width": 64, "model.bias": False}) == (
        'settings={"model.width": 64, "model.bias": False}'
    )
    assert call("train", "translate", "a.en", resume=Path("run")) == 'heedful.train("translate", "a.en", resume="run")'
    assert by_interface("load", "--load") == "load"


def test_options_are_written_while_a_command_runs() -> None:
    with command_line():
        assert argument("max_length", 4) == "--max-length 4"
        assert argument("start_from", Path("a b")) == "--from 'a b'"
        assert argument("valid", ["dev.en", "dev.de"]) == "--valid dev.en --valid dev.de"
        assert argument("architecture") == "--model"
        assert (argument("keep", True), argument("keep", False)) == ("--keep", "--no-keep")
        assert settings_argument({"training.betas": (0.9, 0.98), "model.bias": False}) == (
            "--set training.betas=0.9,0.98 --set model.bias=false"
        )
        assert call("train", resume=Path("run")) == "heedful train --resume run"
        assert by_interface("load", "--load") == "--load"
    assert argument("beam", 4) == "beam=4"

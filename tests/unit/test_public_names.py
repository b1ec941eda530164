"""The public names: all there, all documented, and cheap to have."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import heedful

every_name = pytest.mark.parametrize("name", heedful.__all__)


def run(script: str) -> str:
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@every_name
def test_a_public_name_resolves(name: str) -> None:
    assert getattr(heedful, name) is not None
    assert name in dir(heedful)


@every_name
def test_a_public_name_is_documented(name: str) -> None:
    """In words written for it: not inherited, not made up from the fields of a data class."""
    thing = getattr(heedful, name)
    if isinstance(thing, dict):  # data has no docstring of its own; its module speaks for it
        words = sys.modules["heedful.models.presets"].__doc__
    else:
        words = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert words
    assert not words.startswith(f"{name}(")


def test_type_checkers_see_the_same_names_as_a_running_program() -> None:
    tree = ast.parse(Path(inspect.getsourcefile(heedful) or "").read_text(encoding="utf-8"))
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    seen = {(alias.name, node.module) for node in imports for alias in node.names}
    assert seen == {(name, f"heedful.{home}") for name, home in heedful._HOME.items()}
    assert set(heedful.__all__) == set(heedful._HOME)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'heedful' has no attribute 'transform'"):
        heedful.transform  # noqa: B018


def test_the_version_is_the_installed_one() -> None:
    assert heedful.__version__ == importlib.metadata.version("heedful")


def test_importing_heedful_alone_does_not_wait_for_torch() -> None:
    script = (
        "import sys, heedful; dir(heedful); heedful.UsageError; print(sorted({'torch', 'pydantic'} & {*sys.modules}))"
    )
    assert run(script).strip() == "[]"


def test_plain_use_needs_neither_the_checks_of_the_tests_nor_what_only_many_processes_do() -> None:
    """jaxtyping and beartype need not be installed; what cuts weights into shards takes half a second to import."""
    script = """
import sys
sys.modules["jaxtyping"] = sys.modules["beartype"] = None  # importing either now fails
import torch, heedful
tokens = torch.tensor([[1, 2, 3]])
for name in ("laptop-writer", "laptop-translator", "laptop-reader", "recurrent-translator", "recurrent-writer"):
    model = heedful.build(name, vocabulary=9, width=16).eval()
    texts = (tokens, tokens) if name.endswith("translator") else (tokens,)
    print(name, *model(*texts).shape)
for name in heedful.__all__:
    getattr(heedful, name)
slow = ("torch.distributed.tensor", "torch._dynamo", "matplotlib", "sacrebleu")
print([name for name in slow if name in sys.modules])
"""
    first, second, *_, imported = run(script).strip().split("\n")
    assert (first, second) == ("laptop-writer 1 3 9", "laptop-translator 1 3 9")
    assert imported == "[]"

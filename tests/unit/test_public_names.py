"""Public names: resolvable, documented, and importable without torch."""

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
    """By a docstring of its own: not inherited, not generated from a dataclass's fields."""
    thing = getattr(heedful, name)
    if isinstance(thing, dict):  # the docstring of its module
        docstring = sys.modules["heedful.models.presets"].__doc__
    else:
        docstring = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert docstring
    assert not docstring.startswith(f"{name}(")


def test_type_checkers_see_the_names_that_exist_at_run_time() -> None:
    tree = ast.parse(Path(inspect.getsourcefile(heedful) or "").read_text(encoding="utf-8"))
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    seen = {(alias.name, node.module) for node in imports for alias in node.names}
    assert seen == {(name, f"heedful.{module}") for name, module in heedful._MODULE.items()}
    assert set(heedful.__all__) == set(heedful._MODULE)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'heedful' has no attribute 'transform'"):
        heedful.transform  # noqa: B018


def test_the_version_is_the_installed_one() -> None:
    assert heedful.__version__ == importlib.metadata.version("heedful")


def test_importing_heedful_does_not_import_torch() -> None:
    script = (
        "import sys, heedful; dir(heedful); heedful.UsageError; print(sorted({'torch', 'pydantic'} & {*sys.modules}))"
    )
    assert run(script).strip() == "[]"


def test_the_help_text_does_not_import_torch() -> None:
    script = """
import sys
sys.argv = ["heedful", "--help"]
from heedful.cli.app import main
try:
    main()
except SystemExit:
    print(sorted({"torch", "pydantic", "numpy"} & {*sys.modules}))
"""
    assert run(script).strip().splitlines()[-1] == "[]"


def test_loading_needs_only_the_mandatory_packages(tmp_path: Path) -> None:
    """torch, tokenizers, safetensors, pydantic and numpy."""
    script = f"""
import sys
for name in ("babel", "ctranslate2", "matplotlib", "rich", "sacrebleu", "typer"):
    sys.modules[name] = None  # importing it now fails
import heedful
heedful.save(heedful.build("laptop-writer", vocabulary=20, width=16, layers=1), {str(tmp_path)!r})
print(heedful.load({str(tmp_path)!r}, device="cpu").model.config.width)
"""
    assert run(script).strip() == "16"


def test_public_names_need_no_test_tools_and_no_slow_optional_imports() -> None:
    """jaxtyping and beartype need not be installed. Importing DTensor takes half a second, torch's compiler longer:
    neither building a model nor recording its values imports them.
    """
    script = """
import sys
sys.modules["jaxtyping"] = sys.modules["beartype"] = None  # importing either now fails
import torch, heedful
tokens = torch.tensor([[1, 2, 3]])
for name in ("laptop-writer", "laptop-translator", "laptop-reader", "recurrent-translator", "recurrent-writer"):
    model = heedful.build(name, vocabulary=9, width=16).eval()
    texts = (tokens, tokens) if name.endswith("translator") else (tokens,)
    print(name, *model(*texts).shape)
    with heedful.record(model, "*"):
        model(*texts)
for name in heedful.__all__:
    getattr(heedful, name)
slow = ("torch.distributed.tensor", "torch._dynamo", "matplotlib", "sacrebleu")
print([name for name in slow if name in sys.modules])
"""
    first, second, *_, imported = run(script).strip().split("\n")
    assert (first, second) == ("laptop-writer 1 3 9", "laptop-translator 1 3 9")
    assert imported == "[]"

"""Load studies: those of `heedful.lab.studies`, one per file, or any Python file that defines `STUDY`."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from heedful.errors import UsageError, nearest
from heedful.lab import studies
from heedful.lab.study import Study

ORDER = (
    "order", "skips", "form", "approximation", "scale", "averaging", "bottleneck", "cost", "beyond", "teaching",
    "windows", "heads",
)  # fmt: skip
"""The order in which studies are listed, by question. Unlisted studies follow."""


@cache
def all_studies() -> dict[str, Study]:
    """The studies of the package by name."""
    modules = [import_module(f"{studies.__name__}.{module.name}") for module in iter_modules(studies.__path__)]
    by_name = {module.STUDY.name: module.STUDY for module in modules}
    rank = {name: number for number, name in enumerate(ORDER)}
    return dict(sorted(by_name.items(), key=lambda item: (rank.get(item[0], len(rank)), item[0])))


@cache
def load_study(reference: str) -> Study:
    """A study by its name, or by the Python file that defines it as `STUDY`."""
    if not reference.endswith(".py"):
        known = all_studies()
        if reference not in known:
            raise UsageError(f"unknown study '{reference}'; {nearest(reference, known)}")
        return known[reference]
    study = getattr(_import_file(Path(reference)), "STUDY", None)
    if not isinstance(study, Study):
        raise UsageError(f"{reference} defines no STUDY; end it with STUDY = Study(...)")
    return study


def study_source(reference: str) -> bytes:
    """The content of the file that defines a study."""
    if reference.endswith(".py"):
        return Path(reference).read_bytes()
    module = sys.modules[load_study(reference).measure.__module__]
    return Path(str(module.__file__)).read_bytes()


def _import_file(file: Path) -> object:
    """Import a file as a module. It is registered, so that dataclasses in it work."""
    if not file.is_file():
        raise UsageError(f"{file} does not exist")
    name = f"heedful_study_{file.stem}"
    specification = importlib.util.spec_from_file_location(name, file)
    assert specification is not None
    assert specification.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    return module

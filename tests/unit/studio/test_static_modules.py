"""The page's modules import and export nothing in vain, and load nothing from elsewhere."""

from __future__ import annotations

import re

from heedful.studio.studio_app import PAGE

MODULES = {path: path.read_text(encoding="utf-8") for path in PAGE.rglob("*.js") if path.parent.name != "vendor"}


def uses(name: str, text: str) -> int:
    return len(re.findall(rf"\b{re.escape(name)}\b", text))


def test_every_import_is_used_and_every_export_is_imported() -> None:
    for path, text in MODULES.items():
        for names in re.findall(r"import \{([^}]*)\} from", text):
            for name in filter(None, (each.strip().split(" as ")[-1] for each in names.split(","))):
                assert uses(name, text) > 1, f"{path.name} imports {name} in vain"
        for name in re.findall(r"export (?:const|function|class|async function) (\w+)", text):
            others = (other for module, other in MODULES.items() if module != path)
            assert any(uses(name, other) for other in others), f"{path.name} exports {name} in vain"


def test_every_imported_module_is_a_file_of_the_page() -> None:
    for path, text in MODULES.items():
        for name in re.findall(r"(?:from |import\()\"([^\"]+)\"", text):
            assert name.startswith("."), f"{path.name} imports {name}"
            assert (path.parent / name).is_file(), f"{path.name} imports {name}"
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), path.name

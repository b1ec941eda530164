"""The files of a model folder that determine its outputs, each verified against the manifest when it is read.

    config.json  model.safetensors                                every model
    tokenizer.json  target_tokenizer.json                         models of text
    task.json                                                     classifiers and question answerers
    alignment.json  confidence.json  input_splitting.json         translators
    activation_means.json                                         models whose means were measured
    training_text.json                                            models trained here: columns, scripts, checksums
    faithfulness.json                                             models whose attributions were measured
    manifest.json                                                 size and SHA-256 of each of the above

Safetensors and JSON load a flipped bit without an error. In heedful's format a file that differs from the manifest, or
is not in it, is therefore an error. Hugging Face layouts have no manifest: their files are read as they are.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from heedful.errors import CheckpointError
from heedful.files import MANIFEST, Checksum, checksum_of, read_manifest, verify_file
from heedful.untrusted_files import MAX_JSON_BYTES, parse_json_object, read_bounded

CONFIG, WEIGHTS = "config.json", "model.safetensors"
TOKENIZER_FILE, TARGET_TOKENIZER_FILE = "tokenizer.json", "target_tokenizer.json"
TASK_FILE = "task.json"
"""Settings of a classifier or question answerer."""
ALIGNMENT_FILE, CONFIDENCE_FILE, INPUT_SPLITTING_FILE = "alignment.json", "confidence.json", "input_splitting.json"
"""Settings of a translator, measured when training ends."""
MEANS_FILE = "activation_means.json"
"""Mean activations over validation text, which mean ablation substitutes for those of a part."""
TRAINING_TEXT_FILE = "training_text.json"
"""Columns, scripts and checksums of the training text, which evaluation compares with."""
FAITHFULNESS_FILE = "faithfulness.json"
"""Faithfulness of each attribution method, measured on validation text."""
OPTIONAL_FILES = (
    TOKENIZER_FILE,
    TARGET_TOKENIZER_FILE,
    TASK_FILE,
    ALIGNMENT_FILE,
    CONFIDENCE_FILE,
    INPUT_SPLITTING_FILE,
    MEANS_FILE,
    TRAINING_TEXT_FILE,
    FAITHFULNESS_FILE,
)
LIMITS = {
    ALIGNMENT_FILE: 1 << 20,
    CONFIDENCE_FILE: 1 << 20,
    INPUT_SPLITTING_FILE: 1 << 20,
    FAITHFULNESS_FILE: 1 << 20,
    MEANS_FILE: 16 << 20,
}
"""Maximum bytes of files whose size depends on neither text nor vocabulary."""
FORMAT = "heedful-1"
HUB_NAME = re.compile(r"(?!\.)[\w.-]+(/[\w.-]+)?")
"""A model of the Hugging Face Hub: NAME or OWNER/NAME."""


class ModelFiles:
    """A model folder opened for reading; `verify=False` accepts files that are changed or not in the manifest."""

    def __init__(self, folder: Path, *, verify: bool = True) -> None:
        self.folder = folder
        content = self._read_config()
        self.config = parse_json_object(content, folder / CONFIG)
        self.is_heedful_format = self.config.get("format") == FORMAT
        self.manifest = self._read_manifest() if self.is_heedful_format and verify else None
        self._check(CONFIG, content)

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if the model has no such file."""
        file = self.folder / name
        try:
            content = read_bounded(file, LIMITS.get(name, MAX_JSON_BYTES))
        except FileNotFoundError:
            if self.manifest and name in self.manifest:
                raise CheckpointError(f"{file} is missing: get the folder again") from None
            return None
        self._check(name, content)
        return content

    def verify_size(self, name: str) -> Path:
        """Check the existence and size of a file that may be too large to read, and return its path."""
        file = self.folder / name
        if not file.is_file():
            raise CheckpointError(f"{file} is missing: get the folder again")
        size = file.stat().st_size
        if self.manifest and name in self.manifest and size != (expected := self.manifest[name].size):
            raise CheckpointError(f"{file} has {size} bytes, its manifest says {expected}: get the folder again")
        return file

    def verify(self, name: str) -> Path:
        """Check a file that is not read here, and return its path."""
        self._check(name)
        return self.folder / name

    def differing(self) -> list[str]:
        """The files that differ from the manifest, or are not in it: what `verify=False` accepts."""
        if not self.is_heedful_format:
            return []
        try:
            manifest = read_manifest(self.folder)
        except CheckpointError:
            return [MANIFEST]
        present = [name for name in (CONFIG, WEIGHTS, *OPTIONAL_FILES) if (self.folder / name).is_file()]
        return [name for name in present if manifest.get(name) != checksum_of(self.folder / name)]

    def _read_config(self) -> bytes:
        if not self.folder.is_dir():
            problem = "" if self.folder.exists() else f": it does not exist{missing_folder_hint(self.folder)}"
            raise CheckpointError(f"{self.folder} is not a model folder{problem}")
        try:
            return read_bounded(self.folder / CONFIG)
        except FileNotFoundError:
            raise CheckpointError(f"{self.folder} is not a model folder: it has no {CONFIG}") from None

    def _read_manifest(self) -> dict[str, Checksum]:
        try:
            return read_manifest(self.folder)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; {self._remedy}") from None

    @property
    def _remedy(self) -> str:
        """What to do about a file that is not what the manifest says."""
        return f"get the folder again or, if the change is yours: heedful import {self.folder} NEW"

    def _check(self, name: str, content: bytes | None = None) -> None:
        """Raise unless a file, or its `content` if that has been read, agrees with the manifest."""
        if self.manifest is None:
            return
        file = self.folder / name
        try:
            if name not in self.manifest:
                raise CheckpointError(f"{file} is not in {MANIFEST}, so it cannot be verified")
            verify_file(file, self.manifest[name], content)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; {self._remedy}") from None


def missing_folder_hint(folder: Path) -> str:
    """A hint for a missing folder: the nearest one beside it, or how to download a model of that name."""
    beside = folder.parent.iterdir() if folder.parent.is_dir() else iter(())
    models = [path.name for path in beside if (path / CONFIG).is_file()]
    if close := get_close_matches(folder.name, models, n=1, cutoff=0.8):
        return f"; did you mean '{folder.parent / close[0]}'?"
    typed = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder  # recipes resolve paths
    name = str(typed).rpartition("huggingface.co/")[2]
    if not HUB_NAME.fullmatch(name):
        return ""
    directory = name.rpartition("/")[2]
    return f"; to use a model of the Hugging Face Hub, download it first: hf download {name} --local-dir {directory}"

"""Registry of the served models by name: loaded once, and again when their folder is replaced."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
from torch import nn

from heedful.device import select_device
from heedful.engine.continuous_engine import ContinuousEngine
from heedful.engine.routing import Routes
from heedful.errors import CheckpointError, HeedfulError, UsageError
from heedful.inference.trained_model import TrainedModel
from heedful.loading import load_files
from heedful.model_files import WEIGHTS, ModelFiles
from heedful.server.language_pairs import LanguagePair, recorded_pair

Signature = tuple[tuple[str, int, int, int], ...]
"""Name, size, time and inode of each file that decides a model's answers."""
MODEL_SUFFIXES = (".json", ".safetensors", ".toml", ".txt", ".model")
"""Files of a model, in our format and in Hugging Face's; not those that a training run appends to."""
Notice = Callable[[str], object]


@dataclass(frozen=True)
class RegisteredModel:
    """A model that is served, and the state of the folder it came from."""

    name: str
    trained: TrainedModel
    routes: Routes
    """To this very model, whatever replaces it under its name."""
    languages: LanguagePair | None = None
    signature: Signature | None = None
    """None: a model that came from memory."""
    loaded_at: float = 0.0
    """Seconds since 1970."""
    problem: str = ""
    """Why the folder as it is now was not loaded; empty if it was."""

    @property
    def task(self) -> str:
        return "embed" if self.trained.task == "encode" else self.trained.task


class ModelRegistry:
    """Loads model folders into an engine, and again when they change: a damaged folder leaves the old model serving."""

    def __init__(
        self,
        engine: ContinuousEngine,
        *,
        device: str = "auto",
        int8: bool = False,
        languages: Mapping[str, LanguagePair] | None = None,
        notice: Notice = print,
    ) -> None:
        self.engine, self.device, self.int8, self.notice = engine, device, int8, notice
        self.languages = dict(languages or {})
        self.served: dict[str, RegisteredModel] = {}
        self._changing: dict[str, Signature] = {}
        """Folders that had changed at the last look."""
        self._has_replaced = False
        """Whether a model was replaced at the last look."""
        self._stop = Event()

    def add(self, name: str, model: TrainedModel | Path) -> None:
        """Serve a model that is in memory, or load a folder and serve it."""
        if name in self.served:
            raise UsageError(f"two models are called '{name}': rename one of the folders")
        signature = folder_signature(model) if isinstance(model, Path) else None
        self._serve(name, load_unmapped(model, self.device) if isinstance(model, Path) else model, signature)

    def names(self, task: str | None = None) -> list[str]:
        """The names of the models, or of those for a task; every model can embed."""
        return [served.name for served in self.served.values() if task in (None, "embed", served.task)]

    def watch(self, every: float) -> None:
        """Look at the folders every so many seconds, in a thread, until `close`."""
        if every:
            Thread(target=self._watch, args=(every,), name="model folders", daemon=True).start()

    def close(self) -> None:
        self._stop.set()

    def reload_changed(self) -> None:
        """Load every folder that has changed, and has not changed any more since the last look."""
        if self._has_replaced:
            self._has_replaced = False
            free_memory()
        for served in list(self.served.values()):
            folder = served.trained.folder
            if served.signature is None or folder is None:
                continue
            signature = folder_signature(folder)
            if signature == served.signature:
                self._changing.pop(served.name, None)
            elif self._changing.get(served.name) == signature:
                del self._changing[served.name]
                self._reload(served, folder, signature)
            else:
                self._changing[served.name] = signature

    def _serve(self, name: str, trained: TrainedModel, signature: Signature | None) -> None:
        """Give a model to the engine; requests that it has accepted keep the model before."""
        pair = self.languages.get(name)
        if pair is None and trained.folder is not None and trained.task == "translate":
            pair = recorded_pair(trained.folder)
        routes = self.engine.add_model(name, trained, int8=self.int8 and hasattr(trained, "backends"))
        self.served[name] = RegisteredModel(name, trained, routes, pair, signature, time.time())

    def _watch(self, every: float) -> None:
        while not self._stop.wait(every):
            try:
                self.reload_changed()
            except Exception as error:  # the watcher outlives whatever a folder does
                self.notice(f"model folders cannot be looked at: {error}")

    def _reload(self, served: RegisteredModel, folder: Path, signature: Signature) -> None:
        """Load a changed folder; one that is damaged or incomplete is reported once and looked at when it changes."""
        try:
            trained = load_unmapped(folder, self.device)
            if trained.task != served.trained.task:
                raise CheckpointError(f"{folder} is now {trained.kind}, and was {served.trained.kind}")
            self._serve(served.name, trained, signature)
        except (HeedfulError, OSError) as error:
            problem = str(error).replace(str(folder), served.name)
            self.served[served.name] = replace(served, signature=signature, problem=problem)
            self.notice(f"{served.name}: the model loaded before is still served: {error}")
            return
        self._has_replaced = True
        self.notice(f"{served.name}: loaded again, because its folder has changed")


def named_folders(folders: Sequence[str | Path]) -> dict[str, Path]:
    """Model folders by the names they are served under: those of the folders."""
    named: dict[str, Path] = {}
    for folder in map(Path, folders):
        name = served_name(folder)
        if name in named:
            raise UsageError(f"{named[name]} and {folder} are both called '{name}': rename one of them")
        named[name] = folder
    return named


def served_name(folder: Path) -> str:
    """The name that a folder is served under: its own, also if it is a link to another one."""
    return Path(os.path.abspath(folder)).name


def load_unmapped(folder: Path, device: str) -> Any:
    """Load a folder into memory of this process.

    Weights that are mapped from a file would change under a running model when the file is overwritten. They are
    copied, and the file is verified again after that.
    """
    files = ModelFiles(folder)
    trained = load_files(files, select_device(device))
    copy_weights(trained.model)
    if files.is_heedful_format:
        files.verify(WEIGHTS)
    return trained


@torch.no_grad()
def copy_weights(model: nn.Module) -> None:
    """Move parameters and buffers into memory of their own."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


def free_memory() -> None:
    """Free models that were replaced, whose objects refer to each other, and give their memory back to the system."""
    gc.collect()
    with suppress(OSError, AttributeError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)


def folder_signature(folder: Path) -> Signature:
    """The state of a model folder, which changes when it is replaced; () for a folder that is gone."""
    entries = []
    with suppress(OSError):
        for file in sorted(folder.iterdir()):
            if file.suffix in MODEL_SUFFIXES:
                with suppress(OSError):  # gone since it was listed
                    status = file.stat()
                    entries.append((file.name, status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(entries)

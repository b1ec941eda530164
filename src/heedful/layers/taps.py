"""Taps: record any inner value of a running model, or replace it (A9).

    with record(model, "decoder.*.cross.weights") as seen:
        model(source, target)
    seen["decoder.3.cross.weights"]

    with replace(model, {"encoder.0.attention.heads": lambda heads: heads.index_fill(1, lost, 0.0)}):
        model(source, target)          # the same model with a head ablated

A tap without listeners costs one test of an empty dict; `torch.compile` removes even that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import ClassVar

from torch import Tensor, nn

from heedful.errors import UsageError, nearest

Listener = Callable[[Tensor], Tensor | None]
_active: list[None] = []
"""One entry for each active recording or replacement of any model."""


class Tapped(nn.Module):
    """A module with named tap points; the point called "" has the module's own name."""

    points: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.listeners: dict[str, tuple[Listener, ...]] = {}

    def tap(self, point: str, value: Tensor) -> Tensor:
        """Pass `value` to the listeners at `point`; a value one returns replaces it."""
        if not self.listeners:
            return value
        for listener in self.listeners.get(point, ()):
            replacement = listener(value)
            value = value if replacement is None else replacement
        return value


class Recording(dict[str, Tensor]):
    """The last value recorded at each name; `history` has all of them, since decoding passes a point many times."""

    def __init__(self) -> None:
        super().__init__()
        self.history: defaultdict[str, list[Tensor]] = defaultdict(list)

    def listener(self, name: str) -> Listener:
        def store(value: Tensor) -> None:
            self[name] = value
            self.history[name].append(value)

        return store


def has_listeners(model: nn.Module) -> bool:
    """Whether any tap of this model has a listener; fast while no recording or replacement is active."""
    return bool(_active) and any(part.listeners for part in model.modules() if isinstance(part, Tapped))


def tap_names(model: nn.Module) -> list[str]:
    """Every tap name of this model, for `record` and `replace`."""
    return list(_points(model))


@contextmanager
def record(model: nn.Module, *patterns: str) -> Iterator[Recording]:
    """Record the values at every tap whose name matches a pattern (`*` as in file names); results are unchanged."""
    recording = Recording()
    listeners = {name: recording.listener(name) for name in _matching(model, patterns)}
    with _listening(model, listeners):
        yield recording


@contextmanager
def replace(model: nn.Module, changes: Mapping[str, Tensor | Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Replace the value at every matching tap by a tensor, or by a function of the value."""
    listeners: dict[str, Listener] = {}
    for pattern, change in changes.items():
        for name in _matching(model, [pattern]):
            listeners[name] = _replacer(name, change)
    with _listening(model, listeners):
        yield


def _replacer(name: str, change: Tensor | Callable[[Tensor], Tensor]) -> Listener:
    def substitute(value: Tensor) -> Tensor:
        new = change if isinstance(change, Tensor) else change(value)
        if new.shape != value.shape:
            raise UsageError(f"{name} has shape {tuple(value.shape)}, its replacement {tuple(new.shape)}")
        return new

    return substitute


def _points(model: nn.Module) -> dict[str, tuple[Tapped, str]]:
    """Tap names and where they are; names omit "blocks": `decoder.blocks.3.cross` is decoder.3.cross."""
    points = {}
    for path, module in model.named_modules():
        if isinstance(module, Tapped):
            for point in module.points:
                parts = [part for part in (*path.split("."), point) if part not in ("", "blocks", "_orig_mod")]
                points[".".join(parts)] = (module, point)
    return points


def _matching(model: nn.Module, patterns: tuple[str, ...] | list[str]) -> list[str]:
    known = _points(model)
    matching: dict[str, None] = {}
    for pattern in patterns:
        names = [name for name in known if fnmatchcase(name, pattern)]
        if not names:
            raise UsageError(f"no tap of this model matches '{pattern}'; {nearest(pattern, known)}")
        matching.update(dict.fromkeys(names))
    return list(matching)


@contextmanager
def _listening(model: nn.Module, listeners: Mapping[str, Listener]) -> Iterator[None]:
    points = _points(model)
    before = [(points[name][0], dict(points[name][0].listeners)) for name in listeners]
    _active.append(None)
    try:
        for name, listener in listeners.items():
            module, point = points[name]
            module.listeners = {**module.listeners, point: (*module.listeners.get(point, ()), listener)}
        yield
    finally:
        _active.pop()
        for module, listening in reversed(before):
            module.listeners = listening

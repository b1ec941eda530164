"""Taps: record or edit any inner value of a running model (A9).

    with record(model, "decoder.*.cross.weights") as recorded:
        model(source, target)
    recorded["decoder.3.cross.weights"]

    with edit(model, {"encoder.0.attention.heads": lambda heads, site: heads.index_fill(1, lost, 0.0)}):
        model(source, target)          # the same model with a head ablated

Listeners belong to the thread or task that entered the `with` block, never to the model: calls of the same model in
other threads neither see nor trigger them. While no block is open in any thread, a tap costs one test of an empty
list, and `torch.compile` removes even that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from heedful.errors import UsageError, nearest, require_positive

Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True)
class TapSite:
    """Where and when a value passes a tap."""

    name: str
    """The tap: "decoder.3.cross.weights"."""
    layer: int | None = None
    """The layer of the tap; None outside of layers."""
    step: int = 0
    """Tokens decoded before this call: the position of its first query. 0 when nothing is decoded."""
    rows: Tensor | None = None
    """For each row of the batch the index of its text in the request, beams included; None outside of generation."""
    allowed: Tensor | None = None
    """In attention, the attention mask: True where a query may attend, batch × heads × queries × keys or axes of 1."""


def _uncompiled(function: Function) -> Function:
    """Run a function uncompiled: the taps, and their listeners, of a compiled model that is observed.

    The lazy form of torch.compiler.disable imports the compiler at the first call, which takes seconds: only a
    compiled model makes it.
    """
    disabled = getattr(torch, "_disable_dynamo")(function)  # noqa: B009

    @wraps(function)
    def choose(*arguments: Any, **options: Any) -> Any:
        return (disabled if torch.compiler.is_compiling() else function)(*arguments, **options)

    return cast(Function, choose)


Edit = Callable[[Tensor, TapSite], Tensor | None]
"""Returns a replacement for the value passed; None leaves it as it is."""


@dataclass(frozen=True)
class ShownAs:
    """A value that recordings get instead of the one computed; the model's computation does not change."""

    function: Edit

    def __call__(self, value: Tensor, site: TapSite) -> Tensor | None:
        return self.function(value, site)


class _Listener(NamedTuple):
    name: str
    layer: int | None
    function: Edit
    is_edit: bool


@dataclass(eq=False)
class _Scope:
    """The listeners of one `with` block. A closed scope is ignored, even where a copy of its context survives."""

    listeners: dict[tuple[nn.Module, str], tuple[_Listener, ...]]
    is_open: bool = True


_open_scopes: list[_Scope] = []
"""The open scopes of all threads: while it is empty, no tap has a listener."""
_scopes: ContextVar[tuple[_Scope, ...]] = ContextVar("heedful_taps", default=())
_position: ContextVar[tuple[int, Tensor | None]] = ContextVar("heedful_decode_position", default=(0, None))


class Tapped(nn.Module):
    """A module with named tap points; the point called "" has the module's own name."""

    points: tuple[str, ...] = ()
    alias: str = ""
    """In tap names, replaces the last two parts of the module's path: `residual.0` is called `attention`."""

    def tap(self, point: str, value: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Pass `value` to the listeners at `point`; a value that an edit returns replaces it."""
        if not _open_scopes:
            return value
        return _notify(self, point, value, allowed)

    def has_listener(self, *points: str, edits_only: bool = False) -> bool:
        """Whether this thread listens at one of these points, or at any if none is named."""
        if not _open_scopes:
            return False
        return _has_listener(self, points or self.points, edits_only)


@_uncompiled
def _notify(module: Tapped, point: str, value: Tensor, allowed: Tensor | None) -> Tensor:
    shown = value
    for name, layer, function, is_edit in _listeners(module, point):
        observed = value if is_edit else shown
        with _nothing_listening():
            replacement = function(observed, TapSite(name, layer, *_position.get(), allowed))
        if replacement is None or not (is_edit or isinstance(function, ShownAs)):
            continue
        if not isinstance(replacement, Tensor):
            raise UsageError(f"{name} is replaced by a tensor, or left by None; got {type(replacement).__name__}")
        if replacement.shape != value.shape:
            raise UsageError(f"{name} has shape {tuple(value.shape)}, its replacement {tuple(replacement.shape)}")
        shown = replacement.to(value)
        value = shown if is_edit else value
    return value


@_uncompiled
def _has_listener(module: Tapped, points: tuple[str, ...], edits_only: bool) -> bool:
    listening = [listener for point in points for listener in _listeners(module, point)]
    return any(listener.is_edit or not (edits_only or isinstance(listener.function, ShownAs)) for listener in listening)


def _listeners(module: nn.Module, point: str) -> list[_Listener]:
    scopes = [scope for scope in _scopes.get() if scope.is_open]
    return [listener for scope in scopes for listener in scope.listeners.get((module, point), ())]


class Recording(dict[str, Tensor]):
    """The last value recorded at each name; `history` has all of them, since decoding passes a tap many times."""

    def __init__(self, *, to: torch.device | str | None = None, last: int | None = None) -> None:
        super().__init__()
        require_positive(last=last)
        try:
            self.to = None if to is None else torch.device(to)
        except RuntimeError:
            raise UsageError(f"'{to}' is not a device to move recorded values to; use 'cpu', 'cuda' …") from None
        self.history: defaultdict[str, list[Tensor]] = defaultdict(list)
        self.sites: defaultdict[str, list[TapSite]] = defaultdict(list)
        """Where and when each value of `history` was recorded."""
        self.last = last

    def over_steps(self, name: str, axis: int = 1) -> Tensor:
        """The values of all decode steps (or time steps of a recurrent network) joined along the axis of tokens.

        They are in the order of the tokens, also where a recurrent network reads the last token first.
        """
        steps = [site.step for site in self.sites[name]]
        order = sorted(range(len(steps)), key=steps.__getitem__) if len(set(steps)) == len(steps) else range(len(steps))
        return torch.cat([self.history[name][index] for index in order], dim=axis)

    def store(self, value: Tensor, site: TapSite) -> None:
        value = value if self.to is None else value.detach().to(self.to)
        self[site.name] = value
        self.history[site.name].append(value)
        self.sites[site.name].append(site)
        if self.last is not None:
            del self.history[site.name][: -self.last], self.sites[site.name][: -self.last]


@dataclass(frozen=True, eq=False)
class TapEdits:
    """Edits of inner values, by tap name, in the order in which they are applied: what one request changes.

    `recomputes`: the states of earlier tokens depend on later ones, so no decode step may reuse a KV cache.
    """

    edits: tuple[tuple[str, Edit], ...] = ()
    recomputes: bool = False
    _bound: dict[int, _Scope] = field(default_factory=dict, repr=False)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Apply the edits to the calls of this model, in this thread."""
        if not self.edits:
            yield
            return
        key = id(model)
        if key not in self._bound:
            self._bound[key] = _edit_scope(model, self.edits)
        with _listening(_Scope(self._bound[key].listeners)):
            yield


@contextmanager
def record(
    model: nn.Module, *patterns: str, to: torch.device | str | None = None, last: int | None = None
) -> Iterator[Recording]:
    """Record the values at every tap whose name matches a pattern (`*` as in file names); results are unchanged.

    Observes the calls that begin inside the block. To bound memory, `to="cpu"` moves values off a GPU and `last=n`
    keeps the last n values of each tap.
    """
    recording = Recording(to=to, last=last)
    names = matching_taps(model, patterns)
    with _listening(_scope(model, [(name, recording.store) for name in names], is_edit=False)):
        yield recording


@contextmanager
def edit(model: nn.Module, edits: Mapping[str, Tensor | Edit]) -> Iterator[None]:
    """Replace the value of every matching tap by a tensor, or by the result of a function of value and `TapSite`.

    Applies to the calls of this model that this thread makes inside the block. For a trained model, prefer the
    `interventions` of one call.
    """
    functions = [(pattern, _constant(new) if isinstance(new, Tensor) else new) for pattern, new in edits.items()]
    with _listening(_edit_scope(model, functions)):
        yield


@contextmanager
def decode_position(step: int, rows: Tensor | None) -> Iterator[None]:
    """Set the decode step, and the text that each row of the batch belongs to, for taps inside the block."""
    before = _position.get()
    _position.set((step, rows))
    try:
        yield
    finally:
        _position.set(before)


@contextmanager
def at_last_of(tokens: int) -> Iterator[None]:
    """Set the position for taps inside the block that see only the last of `tokens` tokens."""
    step, rows = _position.get()
    with decode_position(step + tokens - 1, rows):
        yield


def current_decode_position() -> tuple[int, Tensor | None]:
    """The step and rows of the enclosing `decode_position`."""
    return _position.get()


def is_observed(model: nn.Module) -> bool:
    """Whether this thread listens at any tap of this model."""
    if not _open_scopes:
        return False
    modules = set(model.modules())
    return any(scope.is_open and any(key[0] in modules for key in scope.listeners) for scope in _scopes.get())


def tap_names(model: nn.Module) -> list[str]:
    """Every tap name of this model, for `record` and `edit`."""
    return list(_points(model))


def matching_taps(model: nn.Module, patterns: Iterable[str]) -> list[str]:
    """The tap names that match any of the patterns; UsageError for a pattern that matches none."""
    known = _points(model)
    matching: dict[str, None] = {}
    for pattern in patterns:
        names = [name for name in known if fnmatchcase(name, pattern)]
        if not names:
            raise UsageError(f"no tap of this model matches '{pattern}'; {nearest(pattern, known)}")
        matching.update(dict.fromkeys(names))
    return list(matching)


def _constant(value: Tensor) -> Edit:
    return lambda _value, _site: value


def _points(model: nn.Module) -> dict[str, tuple[Tapped, str]]:
    """Tap names and where they are; names omit "blocks": `decoder.blocks.3.cross` is decoder.3.cross."""
    points = {}
    for path, module in model.named_modules():
        if not isinstance(module, Tapped):
            continue
        parts = path.split(".")
        if module.alias:
            parts = [*parts[:-2], module.alias]
        for point in module.points:
            names = [part for part in (*parts, point) if part not in ("", "blocks", "_orig_mod")]
            points[".".join(names)] = (module, point)
    return points


def _scope(model: nn.Module, functions: Iterable[tuple[str, Edit]], *, is_edit: bool) -> _Scope:
    points = _points(model)
    listeners: dict[tuple[nn.Module, str], tuple[_Listener, ...]] = {}
    for name, function in functions:
        layer = next((int(part) for part in name.split(".") if part.isdigit()), None)
        listener = _Listener(name, layer, function, is_edit and not isinstance(function, ShownAs))
        listeners[points[name]] = (*listeners.get(points[name], ()), listener)
    return _Scope(listeners)


def _edit_scope(model: nn.Module, edits: Iterable[tuple[str, Edit]]) -> _Scope:
    functions = [(name, function) for pattern, function in edits for name in matching_taps(model, [pattern])]
    return _scope(model, functions, is_edit=True)


@contextmanager
def _nothing_listening() -> Iterator[None]:
    """Suspend all listeners, for the model calls that a listener makes itself."""
    token = _scopes.set(())
    try:
        yield
    finally:
        _scopes.reset(token)


@contextmanager
def _listening(scope: _Scope) -> Iterator[None]:
    _scopes.set((*_scopes.get(), scope))
    _open_scopes.append(scope)
    try:
        yield
    finally:
        scope.is_open = False
        _open_scopes.remove(scope)
        _scopes.set(tuple(open_scope for open_scope in _scopes.get() if open_scope is not scope))

"""Shapes are checked at every call while the tests run: the same checks as jaxtyping's own, in less than half the time.

jaxtyping's import hook puts `jaxtyping.jaxtyped` on every function of heedful. That binds the arguments of each call to
the signature and checks them twice, before and after, whether or not a shape is among them: a good third of what the
tests would take. Here each call is checked once, by beartype, and axes are only kept account of where some are named.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import beartype

theirs: Any = jaxtyping.jaxtyped


def install() -> None:
    """Let the import hook, which looks the name up, put `checked` on functions. To be called before heedful is
    imported."""
    jaxtyping.jaxtyped = ours


def ours(thing: Any = None, *, typechecker: Any = None) -> Any:
    """In the place of `jaxtyping.jaxtyped`: `@jaxtyped(typechecker=…)`, which is how the hook writes it."""
    return checked if thing is None else theirs(thing, typechecker=typechecker)


def checked(thing: Any) -> Any:
    """A function that looks at what it is given and what it gives; of a data class, that which makes one."""
    if isinstance(thing, classmethod | staticmethod):
        return type(thing)(checked(thing.__func__))
    if isinstance(thing, property):
        return property(*(each and checked(each) for each in (thing.fget, thing.fset, thing.fdel)), thing.__doc__)
    if inspect.isclass(thing):
        if is_dataclass(thing):
            thing.__init__ = checked(thing.__init__)  # type: ignore[misc]
        return thing
    if inspect.isgeneratorfunction(thing) or inspect.iscoroutinefunction(thing):
        return theirs(thing, typechecker=beartype)  # whose work goes on after the call
    return checked_function(thing)


def checked_function(function: Callable[..., Any]) -> Callable[..., Any]:
    function.__annotations__ = {
        name: resolved(annotation, function.__globals__) for name, annotation in function.__annotations__.items()
    }
    typed = beartype(function)

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        return (function if jaxtyping.config.jaxtyping_disable else typed)(*given, **named)

    @wraps(function)
    def call_with_axes(*given: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return function(*given, **named)
        with theirs("context"):  # an axis has one length throughout a call
            return typed(*given, **named)

    return call_with_axes if any(map(names_axes, function.__annotations__.values())) else call


def resolved(annotation: Any, names: dict[str, Any]) -> Any:
    """The type an annotation stands for; anything, where what it names is not there yet. As jaxtyping does it."""

    def stub() -> None: ...

    stub.__annotations__ = {"value": annotation}
    try:
        return get_type_hints(stub, names, include_extras=True)["value"]
    except Exception:
        return Any


def names_axes(annotation: Any) -> bool:
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(names_axes, get_args(annotation)))

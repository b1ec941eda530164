"""Check tensor shapes at every call while tests run, in less than half the time of jaxtyping's own decorator.

jaxtyping's import hook puts `jaxtyping.jaxtyped` on every function of heedful, which binds and checks the arguments of
each call twice, whether or not they have shapes: a good third of the test suite's time. Here beartype checks each call
once, and axis lengths are tracked only where an annotation names axes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from typing import Any, Self, get_args, get_type_hints

import jaxtyping
import torch
from beartype import beartype

original_jaxtyped: Any = jaxtyping.jaxtyped


def install() -> None:
    """Replace `jaxtyping.jaxtyped`, which the import hook looks up by name; call it before heedful is imported."""
    jaxtyping.jaxtyped = jaxtyped


def jaxtyped(target: Any = None, *, typechecker: Any = None) -> Any:
    """Stand-in for `jaxtyping.jaxtyped`; the hook writes `@jaxtyped(typechecker=…)`."""
    return checked if target is None else original_jaxtyped(target, typechecker=typechecker)


def checked(target: Any) -> Any:
    """Check the arguments and result of a function; of a dataclass, the arguments of its constructor."""
    if isinstance(target, classmethod | staticmethod):
        return type(target)(checked(target.__func__))
    if isinstance(target, property):
        accessors = (target.fget, target.fset, target.fdel)
        return property(*(accessor and checked(accessor) for accessor in accessors), target.__doc__)
    if inspect.isclass(target):
        if is_dataclass(target):
            target.__init__ = checked(target.__init__)  # type: ignore[misc]
        return target
    if is_triton_kernel(target):
        return target
    if inspect.isgeneratorfunction(target) or inspect.iscoroutinefunction(target):
        return original_jaxtyped(target, typechecker=beartype)  # it keeps running after the call returns
    return checked_function(target)


def is_triton_kernel(function: Callable[..., Any]) -> bool:
    """Whether `@triton.jit` is applied to this function: Triton compiles its source, which a wrapper would hide."""
    return "triton" in function.__globals__ and inspect.getsource(function).lstrip().startswith("@triton.jit")


def checked_function(function: Callable[..., Any]) -> Callable[..., Any]:
    function.__annotations__ = {
        name: resolved(annotation, function.__globals__) for name, annotation in function.__annotations__.items()
    }
    typed = beartype(function)

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True
        return (function if is_off() else typed)(*arguments, **keywords)

    @wraps(function)
    def call_with_axes(*arguments: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True
        if is_off():
            return function(*arguments, **keywords)
        with original_jaxtyped("context"):  # an axis has one length throughout a call
            return typed(*arguments, **keywords)

    return call_with_axes if any(map(names_axes, function.__annotations__.values())) else call


def is_off() -> bool:
    """Whether calls go unchecked: on request, and while torch.compile traces, which cannot follow beartype."""
    return jaxtyping.config.jaxtyping_disable or torch.compiler.is_compiling()


def resolved(annotation: Any, names: dict[str, Any]) -> Any:
    """The type of an annotation; `Any` where a name in it is not defined yet, as in jaxtyping, or it is `Self`."""

    def stub() -> None: ...

    stub.__annotations__ = {"value": annotation}
    try:
        hint = get_type_hints(stub, names, include_extras=True)["value"]
    except Exception:
        return Any
    return Any if hint is Self or Self in get_args(hint) else hint  # beartype knows `Self` in decorated classes only


def names_axes(annotation: Any) -> bool:
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(names_axes, get_args(annotation)))

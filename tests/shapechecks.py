"""Check tensor shapes while tests run, at a fraction of the cost of jaxtyping's own decorator.

jaxtyping's import hook puts `jaxtyping.jaxtyped` on every function of heedful, which binds and checks the arguments of
each call twice: a good third of the test suite's time. Here a function is checked if its signature names shapes (mypy
checks the others), and once for each combination of shapes: the next call with the same ones would repeat it.
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
CONTAINER = "container"


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
    return checked_function(target)


def is_triton_kernel(function: Callable[..., Any]) -> bool:
    """Whether `@triton.jit` is applied to this function: Triton compiles its source, which a wrapper would hide."""
    return "triton" in function.__globals__ and inspect.getsource(function).lstrip().startswith("@triton.jit")


def checked_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that checks its tensors; one without shapes in its signature as it is, which mypy has checked."""
    annotations = resolved_annotations(function)
    if not any(map(names_axes, annotations.values())):
        return function
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        return original_jaxtyped(function, typechecker=beartype)  # type: ignore[no-any-return]  # it runs on after the call
    function.__annotations__ = annotations
    typed, seen = beartype(function), set[tuple[Any, ...]]()

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True
        shapes = (*map(shape_of, arguments), *keywords, *map(shape_of, keywords.values()))
        if shapes in seen or is_off():
            return function(*arguments, **keywords)
        with original_jaxtyped("context"):  # an axis has one length throughout a call
            result = typed(*arguments, **keywords)
        if CONTAINER not in shapes:
            seen.add(shapes)
        return result

    return call


def shape_of(argument: Any) -> Any:
    """What the check of an argument depends on; CONTAINER for one that may hold tensors of any shape."""
    if isinstance(argument, torch.Tensor):
        return argument.shape, argument.dtype
    return CONTAINER if isinstance(argument, list | tuple | dict) else type(argument)


def is_off() -> bool:
    """Whether calls go unchecked: on request, and while torch.compile traces, which cannot follow beartype."""
    return jaxtyping.config.jaxtyping_disable or torch.compiler.is_compiling()


def resolved_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of a function's annotations."""
    names = function.__globals__
    known: dict[str, Any] = names.setdefault("__resolved_annotations__", {})
    for annotation in function.__annotations__.values():
        if annotation not in known:
            known[annotation] = resolved(annotation, names)
    return {name: known[annotation] for name, annotation in function.__annotations__.items()}


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

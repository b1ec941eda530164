"""Interventions: changes to a model's internal values for one call, as frozen objects.

    translator.translate("A dog runs.", interventions=[heedful.Ablate("decoder.2.cross", heads=[3])])

Each kind is a frozen configuration that prints itself as a sentence and has one JSON form, for Python, the command
line, the server and the page. Parts are named as in `heedful.part_names(model)`: layers, heads, words and tokens are
counted from 0, and `*` stands for any part of a name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeGuard

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError, WrapValidator

from heedful.config import Config, validation_message
from heedful.errors import UsageError
from heedful.layers.taps import Edit
from heedful.untrusted_files import parse_json


def _number(index: Any) -> Any:
    if isinstance(index, bool):
        raise ValueError("name numbers counted from 0, not a mask of true and false")
    return index


def _counted(indices: tuple[int, ...]) -> tuple[int, ...]:
    if any(index < 0 for index in indices):
        raise ValueError(f"indices are counted from 0, got {min(indices)}")
    return tuple(dict.fromkeys(indices))


def _not_empty(indices: tuple[int, ...]) -> tuple[int, ...]:
    if not indices:
        raise ValueError("an empty list changes nothing; leave it out to mean all")
    return indices


MOST_DESCRIBED = 20
"""Maximum number of interventions that `describe` lists; further ones are counted."""
MOST_INTERVENTIONS = 1000
"""Maximum number of interventions of a call: each costs a function call at every decode step."""
Indices = Annotated[tuple[Annotated[int, BeforeValidator(_number)], ...], AfterValidator(_counted)]
SomeIndices = Annotated[Indices, AfterValidator(_not_empty)]


class Intervention(Config):
    """A change of one part of a model, or of all parts that match a pattern, for one call."""

    depends_on_text: ClassVar[bool] = False
    """Whether the change depends on the text, so that texts cannot share a batch."""

    part: Annotated[str, Field(min_length=1)]

    def __init__(self, part: str, /, **fields: Any) -> None:
        super().__init__(part=part, **fields)

    def __str__(self) -> str:
        raise NotImplementedError


class Ablate(Intervention):
    """Switch a part off: heads, a whole sub-layer, a skip-connection, positions, or any tap.

    `to="zero"` puts zeros in its place, `to="mean"` its mean over the validation text, which removes the information
    about this text and keeps what all texts have in common.
    """

    kind: Literal["ablate"] = "ablate"
    heads: SomeIndices | None = None
    to: Literal["zero", "mean"] = "zero"

    def __init__(
        self, /, part: str, heads: Sequence[int] | None = None, *, to: Literal["zero", "mean"] = "zero", **fields: Any
    ) -> None:
        super().__init__(part, heads=heads, to=to, **fields)

    def __str__(self) -> str:
        return f"{_heads_of(self)} off" + (" (mean value)" if self.to == "mean" else "")


class Scale(Intervention):
    """Multiply a part's output, or any tap's value, by a factor."""

    kind: Literal["scale"] = "scale"
    factor: Annotated[float, Field(allow_inf_nan=False)]
    heads: SomeIndices | None = None

    def __init__(self, /, part: str, factor: float, heads: Sequence[int] | None = None, **fields: Any) -> None:
        super().__init__(part, factor=factor, heads=heads, **fields)

    def __str__(self) -> str:
        return f"{_heads_of(self)} multiplied by {self.factor:g}"


class Uniform(Intervention):
    """Make attention uniform: every query reads the mean of all values that it may attend to."""

    kind: Literal["uniform"] = "uniform"
    heads: SomeIndices | None = None

    def __init__(self, /, part: str, heads: Sequence[int] | None = None, **fields: Any) -> None:
        super().__init__(part, heads=heads, **fields)

    def __str__(self) -> str:
        return f"attention of {_heads_of(self)} uniform"


class Hide(Intervention):
    """Forbid an attention to read some words of the text, or some tokens of the model's input."""

    depends_on_text: ClassVar[bool] = True

    kind: Literal["hide"] = "hide"
    words: Indices = ()
    tokens: Indices = ()

    def __init__(self, /, part: str, words: Sequence[int] = (), tokens: Sequence[int] = (), **fields: Any) -> None:
        super().__init__(part, words=words, tokens=tokens, **fields)
        if not self.words and not self.tokens:
            raise UsageError(f"Hide('{part}') names no words and no tokens to hide")

    def __str__(self) -> str:
        hidden = [_numbered(name, numbers) for name, numbers in (("word", self.words), ("token", self.tokens))]
        return f"{self.part} may not read {' and '.join(filter(None, hidden))}"


class Unmask(Intervention):
    """Lift the causal mask: every token attends to later ones too. All states are computed again at every step."""

    depends_on_text: ClassVar[bool] = True

    kind: Literal["unmask"] = "unmask"

    def __init__(self, /, part: str = "decoder", **fields: Any) -> None:
        super().__init__(part, **fields)

    def __str__(self) -> str:
        return f"causal mask of {self.part} lifted"


class Patch(Intervention):
    """Activation patching: replace a part's value by its value for another text.

    In an encoder both texts must have the same number of tokens, unless `tokens` names the positions to patch. In a
    decoder the new value comes from decoding `text` (or reading `target`, if given); positions beyond its length stay
    unchanged.
    """

    depends_on_text: ClassVar[bool] = True

    kind: Literal["patch"] = "patch"
    text: str
    target: str | None = None
    heads: SomeIndices | None = None
    tokens: SomeIndices | None = None

    def __init__(
        self, /, part: str, text: str, *, target: str | None = None, heads: Sequence[int] | None = None,
        tokens: Sequence[int] | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        super().__init__(part, text=text, target=target, heads=heads, tokens=tokens, **fields)

    def __str__(self) -> str:
        where = f" at {_numbered('token', self.tokens)}" if self.tokens else ""
        return f"{_heads_of(self)} patched from '{self.text:.40}'{where}"


class Steer(Intervention):
    """Add a steering vector to a part's value at every token: a given vector, or the difference of two texts' means."""

    kind: Literal["steer"] = "steer"
    vector: tuple[float, ...] | None = None
    toward: str | None = None
    away: str | None = None
    strength: Annotated[float, Field(allow_inf_nan=False)] = 1.0

    def __init__(
        self, /, part: str, vector: Sequence[float] | None = None, *, toward: str | None = None,
        away: str | None = None, strength: float = 1.0, **fields: Any,
    ) -> None:  # fmt: skip
        super().__init__(part, vector=vector, toward=toward, away=away, strength=strength, **fields)
        if (self.vector is None) == (self.toward is None):
            raise UsageError(f"Steer('{part}') needs either a vector, or a text to steer toward")
        if self.away is not None and self.toward is None:
            raise UsageError(f"Steer('{part}') needs a text to steer toward as well as the one to steer away from")

    def __str__(self) -> str:
        if self.toward is None:
            return f"{self.part} plus {self.strength:g} × a vector"
        away = "" if self.away is None else f" and away from '{self.away:.40}'"
        return f"{self.part} steered by {self.strength:g} toward '{self.toward:.40}'{away}"


class Replace(Intervention):
    """Replace a part's value by the result of a Python function of the value and its `TapSite`. It has no JSON form."""

    kind: Literal["replace"] = "replace"
    function: Callable[..., Any]

    def __init__(self, /, part: str, function: Edit, **fields: Any) -> None:
        super().__init__(part, function=function, **fields)

    def __str__(self) -> str:
        return f"{self.part} replaced by {getattr(self.function, '__name__', 'a function')}"


def _checked(value: Any, validate: Callable[[Any], Any]) -> Any:
    """Validate an intervention's settings; a required one that is missing is an error like any other."""
    if isinstance(value, str):
        raise ValueError(f"an intervention is an object, such as Ablate({value!r:.60}); got {value!r:.60}")
    try:
        return validate(value)
    except TypeError as error:  # of a constructor above, whose arguments are positional
        missing = str(error).rpartition("argument")[2].removeprefix("s").strip(": ")
        raise ValueError(f"{value['kind']} needs {missing}") from None


AnyIntervention = Annotated[
    Ablate | Scale | Uniform | Hide | Unmask | Patch | Steer | Replace,
    Field(discriminator="kind"),
    WrapValidator(_checked),
]
JsonIntervention = Annotated[
    Ablate | Scale | Uniform | Hide | Unmask | Patch | Steer, Field(discriminator="kind"), WrapValidator(_checked)
]
"""The kinds that have a JSON form."""
_AT_MOST = Field(max_length=MOST_INTERVENTIONS)
NOT_A_LIST = "must be a list, such as [Ablate('encoder.0')]"
_ANY: TypeAdapter[tuple[AnyIntervention, ...]] = TypeAdapter(Annotated[tuple[AnyIntervention, ...], _AT_MOST])
_JSON: TypeAdapter[tuple[JsonIntervention, ...]] = TypeAdapter(Annotated[tuple[JsonIntervention, ...], _AT_MOST])


def is_list(interventions: object) -> TypeGuard[Sequence[Any]]:
    """Whether the `interventions` of a call are a list: a single one and the name of a part are not."""
    return isinstance(interventions, Sequence) and not isinstance(interventions, Intervention | str | bytes)


def as_interventions(interventions: object) -> tuple[Intervention, ...] | None:
    """Check the `interventions` of a call: a list of interventions, or of their JSON forms. None stays None."""
    if interventions is None:
        return None
    if not is_list(interventions):
        raise UsageError(f"interventions {NOT_A_LIST}; got {interventions!r:.60}")
    try:
        return _ANY.validate_python(tuple(interventions))
    except ValidationError as error:
        raise UsageError(f"interventions: {validation_message(error, lambda _: [])}") from None


def interventions_from_json(content: str | bytes, source: str = "interventions") -> tuple[Intervention, ...]:
    """The interventions in a JSON list: `[{"kind": "ablate", "part": "decoder.2.cross", "heads": [3]}]`."""
    try:
        parse_json(content)
        return _JSON.validate_json(content)
    except ValidationError as error:
        raise UsageError(f"{source}: {validation_message(error, lambda _: [])}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not valid JSON: {error}") from None


def interventions_schema() -> dict[str, Any]:
    """The JSON schema of a list of interventions."""
    return _JSON.json_schema()


def describe(interventions: Sequence[Intervention]) -> str:
    """All interventions of a call in one sentence; at most the first `MOST_DESCRIBED`."""
    sentences = [str(intervention) for intervention in interventions[:MOST_DESCRIBED]]
    if len(interventions) > MOST_DESCRIBED:
        sentences.append(f"{len(interventions) - MOST_DESCRIBED:,} more")
    return "; ".join(sentences) or "nothing changed"


def _heads_of(intervention: Ablate | Scale | Uniform | Patch) -> str:
    if not intervention.heads:
        return intervention.part
    return f"{_numbered('head', intervention.heads)} of {intervention.part}"


def _numbered(noun: str, numbers: Sequence[int] | None) -> str:
    if not numbers:
        return ""
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"

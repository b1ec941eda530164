"""Limits of the time and memory that an untrusted tokenizer.json may take to encode or decode a text.

Its normalizer and decoder may replace characters by longer strings, and several such steps multiply. Its patterns are
regular expressions of a backtracking engine, which can take time exponential in the length of a text. The limits
admit the tokenizers of published models.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple

from heedful.errors import CheckpointError
from heedful.text.tokenizer_kinds import BARE_WORDS, SINGLE_WHITESPACE, WHITESPACE_RUNS, WORDS

MAX_GROWTH = 16.0
"""A text may become this many times as long. BERT's normalizer: 3."""
MAX_REPLACEMENT = 64
"""Longest replacement, in bytes, of a character in SentencePiece's precompiled map (NFKC needs 33)."""
MAX_TOKEN = 4096
"""Longest token, in characters."""
MAX_STEPS = 256
"""Most steps in one part, nested ones included."""
FIXED_BYTES, TOKEN_BYTES = 1 << 20, 1024
"""Maximum size of a tokenizer.json: a fixed part, such as SentencePiece's map of characters, and a part per token."""
MAX_PATTERN = 16_384
MAX_REPEATS, MAX_OPTIONS = 2, 8
"""Unbounded and optional parts in one alternative of a pattern: each can multiply the number of ways to match it."""
FEW = 4
"""A part that is repeated up to this many times counts as optional parts, one that may repeat more as unbounded."""
OWN_PATTERNS = {WHITESPACE_RUNS, SINGLE_WHITESPACE, WORDS, BARE_WORDS}


def check_tokenizer(described: dict[str, Any], rows: int | None = None) -> None:
    """Raise CheckpointError if a tokenizer.json can make a text too long, or take too long to split one.

    `rows`: of the model's table of token vectors. An added token may be beyond it, and is an error where it occurs.
    """
    try:
        for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
            step = described.get(part) or {}
            if (steps := _count_steps(step)) > MAX_STEPS:
                raise CheckpointError(f"its {part} has {steps:,} steps; at most {MAX_STEPS} are allowed")
            if (growth := _growth(step)) > MAX_GROWTH:
                times = f"{growth:,.0f}" if growth < 1e6 else "over a million"
                raise CheckpointError(f"its {part} can make a text {times} times as long")
            for pattern in _patterns(step):
                check_pattern(pattern)
        model = described["model"]
        stored = model["vocab"]
        vocabulary = stored if isinstance(stored, dict) else [token for token, _ in stored]
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        if rows is not None and (last := max(ids, default=0)) >= rows:
            raise CheckpointError(f"its token id {last:,} is outside the model's vocabulary of {rows:,}")
        added = [token["content"] for token in described.get("added_tokens") or ()]
        if (longest := max(map(len, [*vocabulary, *added]), default=0)) > MAX_TOKEN:
            raise CheckpointError(f"its longest token has {longest:,} characters; at most {MAX_TOKEN:,} are allowed")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"not a tokenizer.json: {type(error).__name__}: {error}") from None


def check_size(size: int, rows: int | None) -> None:
    """Raise CheckpointError for a tokenizer.json with more bytes than `rows` tokens need; None: not known."""
    if rows is not None and size > FIXED_BYTES + TOKEN_BYTES * rows:
        raise CheckpointError(f"it has {size:,} bytes, more than the model's vocabulary of {rows:,} tokens needs")


def _count_steps(step: Any) -> int:
    """The number of objects in a part of a tokenizer.json."""
    parts = [*step.values()] if isinstance(step, dict) else step if isinstance(step, list) else []
    return isinstance(step, dict) + sum(map(_count_steps, parts))


def _growth(step: dict[str, Any]) -> float:
    """How many times as long a step of a normalizer or decoder can make a text."""
    match step.get("type"):
        case "Sequence":
            growth = 1.0
            for part in step.get("normalizers") or step.get("decoders") or ():
                growth *= _growth(part)
            return growth
        case "Replace":
            shortest = len(step["pattern"].get("String", ""))
            return max(1.0, len(step["content"]) / shortest if shortest else 1.0 + len(step["content"]))
        case "Prepend":
            return 1.0 + len(step["prepend"]) / 64
        case "BertNormalizer":
            return 3.0  # a space on both sides of a Han character
        case "Precompiled":
            return _longest_replacement(step["precompiled_charsmap"])
    return 1.0


def _longest_replacement(encoded: str) -> float:
    """1 if a character map has short replacements only, else infinite; they follow its trie, separated by zeros."""
    try:
        content = base64.b64decode(encoded)
    except binascii.Error:
        return inf
    replacements = content[4 + int.from_bytes(content[:4], "little") :]
    return 1.0 if max(map(len, replacements.split(b"\0")), default=0) <= MAX_REPLACEMENT else inf


def _patterns(step: Any) -> Iterator[str]:
    """Every regular expression in a part of a tokenizer.json."""
    if isinstance(step, dict):
        if isinstance(pattern := step.get("Regex"), str):
            yield pattern
        step = [*step.values()]
    for part in step if isinstance(step, list) else ():
        yield from _patterns(part)


class _Repeats(NamedTuple):
    """Repeated and optional parts of a piece of a pattern, and whether it contains alternatives."""

    many: int = 0
    optional: int = 0
    choice: bool = False

    def then(self, other: _Repeats) -> _Repeats:
        return _Repeats(self.many + other.many, self.optional + other.optional, self.choice or other.choice)

    def alternative(self, other: _Repeats) -> _Repeats:
        return _Repeats(max(self.many, other.many), max(self.optional, other.optional), choice=True)


# Parts of a pattern in Oniguruma's syntax, except character classes, which nest. Calls, back-references and
# conditions are not among them.
_PART = re.compile(
    r"""(?P<open>\((?:\?(?:[imx-]*:|=|!|>|<=|<!))?(?!\?))
    | (?P<flags>\(\?[imx-]+\))
    | (?P<close>\))
    | (?P<or>\|)
    | (?P<repeat>(?:[*+?]|\{(?P<low>\d*)(?P<comma>,?)(?P<high>\d*)\})[?+]?)
    | (?P<single>\\[pPx]\{[^{}]*\}|\\[^\dgk]|[^\\()|])""",
    re.VERBOSE | re.DOTALL,
)


def check_pattern(pattern: str) -> None:
    """Raise CheckpointError for a regular expression that may backtrack without bound.

    Allowed are alternatives with few repeated parts, and no repetition of a part that repeats or has alternatives
    itself: (a+)+ and (a|a)* match n letters in 2ⁿ ways.
    """
    if pattern in OWN_PATTERNS:
        return
    shown = f"its pattern {pattern!r:.60}"
    if len(pattern) > MAX_PATTERN:
        raise CheckpointError(f"{shown} has {len(pattern):,} characters; at most {MAX_PATTERN:,} are allowed")
    position, last = 0, _Repeats()
    groups: list[tuple[_Repeats | None, _Repeats]] = [(None, _Repeats())]  # earlier alternatives, and the current one
    while position < len(pattern):
        if pattern[position] == "[":
            position, last = _end_of_class(pattern, position), _Repeats()
            continue
        part = _PART.match(pattern, position)
        if part is None:
            raise CheckpointError(f"{shown} uses a reference or condition, which is not allowed")
        position, (before, current) = part.end(), groups[-1]
        match part.lastgroup:
            case "open":
                groups.append((None, _Repeats()))
            case "or":
                groups[-1] = (current if before is None else before.alternative(current), _Repeats(choice=True))
            case "close" if len(groups) > 1:
                last = current if before is None else before.alternative(current)
                groups.pop()
                groups[-1] = (groups[-1][0], groups[-1][1].then(last))
            case "close":
                raise CheckpointError(f"{shown} has a parenthesis too many")
            case "single":
                last = _Repeats()
            case "repeat":
                added = _repeated(part, last)
                if added is None:
                    raise CheckpointError(f"{shown} repeats a part that repeats: it can take forever")
                groups[-1], last = (before, current.then(added)), added
    before, current = groups[0]
    worst = current if before is None else before.alternative(current)
    if worst.many > MAX_REPEATS or worst.optional > MAX_OPTIONS:
        parts = f"{worst.many} repeated and {worst.optional} optional parts"
        raise CheckpointError(f"{shown} has {parts} in a row: it can take forever")


def _repeated(part: re.Match[str], last: _Repeats) -> _Repeats | None:
    """The repetitions that a quantifier adds to an alternative; None if it repeats a part that repeats."""
    if part["low"] is None:
        least, most = 0.0, 1.0 if part["repeat"][0] == "?" else inf
    else:
        least = float(part["low"] or 0)
        most = float(part["high"] or inf) if part["comma"] else least
    if most > 1 and last != _Repeats():
        return None
    return _Repeats(optional=int(most - least)) if most <= FEW else _Repeats(many=1)


def _end_of_class(pattern: str, position: int) -> int:
    """The position after a character class, which may hold others."""
    depth = 0
    while position < len(pattern):
        match pattern[position]:
            case "\\":
                position += 1
            case "[":
                depth += 1
            case "]":
                depth -= 1
        position += 1
        if not depth:
            break
    return position

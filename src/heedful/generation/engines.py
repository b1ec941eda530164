"""Which engine serves a request: torch, which can do everything, or CTranslate2, which is fast on a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from heedful.errors import HeedfulError, UsageError
from heedful.generation.converted import ctranslate2_engine
from heedful.generation.ctranslate2 import CTranslate2, unfit
from heedful.generation.engine import Progress, unwatched
from heedful.generation.flat import lasting
from heedful.generation.generate import generate_ids, generate_tokens
from heedful.generation.ledger import Hypothesis
from heedful.generation.options import LENGTH, Decoding
from heedful.generation.recorded import Recorded
from heedful.generation.rules import Rules
from heedful.generation.sampling import Draw
from heedful.generation.translate import translate_ids
from heedful.interop.ctranslate2 import Quantisation
from heedful.models.transformer import Transformer
from heedful.text.tokenizer import Tokenizer

Ids = Sequence[int]


@dataclass
class Engines:
    """A model, and what it was converted to when that was first asked for."""

    model: Any
    tokenizers: tuple[Tokenizer, ...]
    folder: Path | None
    made: dict[Quantisation, CTranslate2] = field(default_factory=dict)
    recorded: Recorded | None = None
    flat: Any = None

    def own(self, decoding: Decoding) -> Any:
        """The model itself; unless all must be exact, a transformer's steps are flat on a CPU, recorded on a GPU."""
        if decoding.exact or not isinstance(self.model, Transformer):
            return self.model
        if self.model.table.weight.device.type != "cuda":
            self.flat = lasting(self.model, self.flat)
            return self.flat
        if self.recorded is None:
            self.recorded = Recorded(deepcopy(self.model).to(torch.bfloat16).eval())
        return self.recorded

    def choose(self, decoding: Decoding, rules: Rules) -> CTranslate2 | None:
        """CTranslate2 if it was asked for, or can serve this and nobody asked for torch; None: torch.

        Nothing is converted unasked of a model on a GPU, or that lies nowhere yet: being trained, or made by hand.
        """
        demanded = decoding.int8 or decoding.engine == "ctranslate2"
        unasked = self.folder is None or self.model.table.weight.device.type != "cpu"
        if decoding.engine == "torch" or (unasked and not demanded):
            return None
        reason = unfit(self.model, draw=decoding.draw, rules=rules, exact=decoding.exact)
        try:
            if reason is None:
                return self._converted("int8" if decoding.int8 else "float32")
        except HeedfulError as error:
            reason = str(error)
        if demanded:
            raise UsageError(f"{reason}; --engine torch can")
        return None

    def _converted(self, quantisation: Quantisation) -> CTranslate2:
        if quantisation not in self.made:
            vocabularies = [tokenizer.tokens for tokenizer in self.tokenizers]
            self.made[quantisation] = ctranslate2_engine(self.model, vocabularies, self.folder, quantisation)
        return self.made[quantisation]


@dataclass(frozen=True)
class Searching:
    """One way of writing, with everything that is the same for all texts."""

    model: Any
    decoding: Decoding
    rules: Rules
    beam: int
    engine: CTranslate2 | None

    def translate(
        self, sources: Sequence[Ids], *, prefixes: Sequence[Ids] | None = None, progress: Progress = unwatched
    ) -> list[list[Hypothesis]]:
        """As `translate_ids`, by whichever engine."""
        at_most = self.decoding.max_length
        own: dict[str, Any] = {"prefixes": prefixes, "progress": progress}
        if self.engine is None or self._too_long(sources, 1):
            return translate_ids(self.model, sources, at_most=at_most, **self.torch(), **own)
        each = None if at_most is None else [at_most] * len(sources)
        own["each_token"] = self.decoding.words
        return self.engine.translate_ids(sources, at_most=each, **self._common(), **own)

    def generate(self, prompts: Sequence[Ids], *, progress: Progress = unwatched) -> list[list[Hypothesis]]:
        """As `generate_ids`, by whichever engine."""
        if self.engine is None or self.rules.min_length or self._too_long(prompts, self.limit):
            return generate_ids(self.model, prompts, limit=self.limit, **self.torch(), progress=progress)
        found = self.engine.generate_ids(prompts, limit=self.limit, **self._common())
        progress(len(found))
        return found

    def stream(self, prompt: Ids) -> Iterator[int]:
        """As `generate_tokens`, by whichever engine."""
        if self.engine is None or self.rules.min_length or self._too_long([prompt], self.limit):
            draw = self.decoding.draw or Draw(temperature=0.0)
            how: dict[str, Any] = {"draw": draw, "rules": self.rules, "exact": self.decoding.exact}
            return generate_tokens(self.model, prompt, limit=self.limit, **how)
        return self.engine.generate_tokens(prompt, limit=self.limit)

    @property
    def limit(self) -> int:
        return self.decoding.max_length or LENGTH

    def torch(self) -> dict[str, Any]:
        """The options of our own search."""
        return {**self._common(), "draw": self.decoding.draw, "exact": self.decoding.exact}

    def _common(self) -> dict[str, Any]:
        return {
            "beam": self.beam,
            "length_penalty": self.decoding.length_penalty,
            "n_best": self.decoding.n_best,
            "rules": self.rules,
        }

    def _too_long(self, texts: Sequence[Ids], more: int) -> bool:
        longest = max((len(text) for text in texts), default=0) + more
        return unfit(self.model, longest=longest) is not None

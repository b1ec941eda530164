"""Which engine serves a request: torch, which can do everything, or CTranslate2, which is fast on a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.errors import HeedfulError, UsageError
from heedful.generation.backends.cpu_decoder import lasting
from heedful.generation.backends.cpu_linear import weight_version
from heedful.generation.backends.ctranslate2_backend import CTranslate2, too_long, unfit
from heedful.generation.backends.ctranslate2_cache import ctranslate2_engine
from heedful.generation.backends.cuda_graph import CudaGraphDecoder
from heedful.generation.backends.row_parallel import Work, worker_count, run_row_parallel, worth_it
from heedful.generation.continuation import generate_ids, generate_tokens
from heedful.generation.decoding_config import DEFAULT_MAX_LENGTH, DecodingConfig
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.logits_rules import LogitsRules
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.sequence_to_sequence import translate_ids
from heedful.generation.streaming import ProgressCallback, ignore_progress
from heedful.interop.ctranslate2_export import Quantisation
from heedful.models.model_config import TransformerConfig
from heedful.models.transformer import Transformer
from heedful.text.tokenizer import Tokenizer

Ids = Sequence[int]


@dataclass
class Engines:
    """A model, and what it was converted to when that was first asked for."""

    model: Any
    tokenizers: tuple[Tokenizer, ...]
    folder: Path | None
    made: dict[Quantisation, tuple[int, CTranslate2]] = field(default_factory=dict)
    """Converted models, and how often the weights had been changed by then: torch counts."""
    weights: list[Tensor] = field(default_factory=list)
    recorded: CudaGraphDecoder | None = None
    flat: Any = None

    def own(self, decoding: DecodingConfig) -> Any:
        """The model itself; unless all must be exact, a transformer's steps are flat on a CPU, recorded on a GPU."""
        if decoding.exact or not isinstance(self.model, Transformer):
            return self.model
        if self.model.table.weight.device.type != "cuda":
            self.flat = lasting(self.model, self.flat)
            return self.flat
        if self.recorded is None:
            self.recorded = CudaGraphDecoder(deepcopy(self.model).to(torch.bfloat16).eval())
        return self.recorded

    def choose(self, decoding: DecodingConfig, rules: LogitsRules) -> CTranslate2 | None:
        """CTranslate2 if it was asked for, or can serve this and nobody asked for torch; None: torch.

        Nothing is converted unasked of a model on a GPU, or that lies nowhere yet: being trained, or made by hand.
        """
        demanded = decoding.int8 or decoding.engine == "ctranslate2"
        unasked = self.folder is None or self.model.table.weight.device.type != "cpu"
        if decoding.engine == "torch" or (unasked and not demanded):
            return None
        reason = unfit(self.model, draw=decoding.sampling, rules=rules, exact=decoding.exact)
        try:
            if reason is None:
                return self._converted("int8" if decoding.int8 else "float32")
        except HeedfulError as error:
            reason = str(error)
        if demanded:
            raise UsageError(f"{reason}; {'without --int8,' if decoding.int8 else '--engine'} torch can")
        return None

    def _converted(self, quantisation: Quantisation) -> CTranslate2:
        if not self.weights:
            self.weights = list(self.model.parameters())
        now = weight_version(self.weights)
        before, engine = self.made.get(quantisation, (None, None))
        if engine is None or before != now:
            vocabularies = [tokenizer.tokens for tokenizer in self.tokenizers]
            engine = ctranslate2_engine(self.model, vocabularies, self.folder, quantisation)
            self.made[quantisation] = (now, engine)
        return engine


@dataclass(frozen=True)
class Searching:
    """One way of writing, with everything that is the same for all texts."""

    engines: Engines
    decoding: DecodingConfig
    rules: LogitsRules
    beam: int
    engine: CTranslate2 | None

    def translate(
        self, sources: Sequence[Ids], *, prefixes: Sequence[Ids] | None = None, progress: ProgressCallback = ignore_progress
    ) -> list[list[Hypothesis]]:
        """As `translate_ids`, by whichever engine."""
        at_most = self.decoding.max_length
        if engine := self._serving(sources, 1):
            each = None if at_most is None else [at_most] * len(sources)
            own: dict[str, Any] = {"prefixes": prefixes, "progress": progress, "each_token": self.decoding.word_probabilities}
            return engine.translate_ids(sources, at_most=each, **self._common(), **own)

        def write(model: Any, part: Sequence[int], progress: ProgressCallback) -> list[list[Hypothesis]]:
            beginnings = None if prefixes is None else [prefixes[i] for i in part]
            own: dict[str, Any] = {"prefixes": beginnings, "at_most": at_most, "progress": progress}
            return translate_ids(model, [sources[i] for i in part], **self.torch(), **own)

        return self._abreast(sources, write, progress)

    def generate(self, prompts: Sequence[Ids], *, progress: ProgressCallback = ignore_progress) -> list[list[Hypothesis]]:
        """As `generate_ids`, by whichever engine."""
        if engine := self._serving(prompts, self.limit):
            found = engine.generate_ids(prompts, limit=self.limit, **self._common())
            progress(len(found))
            return found

        def write(model: Any, part: Sequence[int], progress: ProgressCallback) -> list[list[Hypothesis]]:
            return generate_ids(model, [prompts[i] for i in part], limit=self.limit, **self.torch(), progress=progress)

        return self._abreast(prompts, write, progress)

    def stream(self, prompt: Ids) -> Iterator[int]:
        """As `generate_tokens`, by whichever engine."""
        if engine := self._serving([prompt], self.limit):
            return engine.generate_tokens(prompt, limit=self.limit)
        draw = self.decoding.sampling or SamplingConfig(temperature=0.0)
        how: dict[str, Any] = {"draw": draw, "rules": self.rules, "exact": self.decoding.exact}
        return generate_tokens(self.model, prompt, limit=self.limit, **how)

    @property
    def model(self) -> Any:
        """For torch: to make it ready takes a moment, so only who needs it asks."""
        return self.engines.own(self.decoding)

    @property
    def limit(self) -> int:
        return self.decoding.max_length or DEFAULT_MAX_LENGTH

    def torch(self) -> dict[str, Any]:
        """The options of our own search. Where CTranslate2 could have served, it stops as that would, so that nothing
        depends on which of the two it was."""
        return {
            **self._common(),
            "draw": self.decoding.sampling,
            "exact": self.decoding.exact,
            "hurry": self.engine is not None,
        }

    def _common(self) -> dict[str, Any]:
        return {
            "beam": self.beam,
            "length_penalty": self.decoding.length_penalty,
            "n_best": self.decoding.n_best,
            "rules": self.rules,
        }

    def _serving(self, texts: Sequence[Ids], more: int) -> CTranslate2 | None:
        """CTranslate2, for what it can do and does faster; None: torch."""
        config: TransformerConfig = self.engines.model.config
        if self.engine is None or (config.family == "decoder" and self.rules.min_length):
            return None
        if too_long(config, max((len(text) for text in texts), default=0) + more):
            return None
        free = self.decoding.engine == "auto" and not self.decoding.int8
        return None if free and worth_it(config, len(texts), self.beam) else self.engine

    def _abreast(
        self, texts: Sequence[Ids], write: Work[list[Hypothesis]], progress: ProgressCallback
    ) -> list[list[Hypothesis]]:
        model, each = self.model, self.decoding.n_best if self.decoding.sampling else self.beam
        count = 1 if self.decoding.exact else worker_count(model, len(texts), each)
        return run_row_parallel(model, [len(text) for text in texts], count, write, progress)

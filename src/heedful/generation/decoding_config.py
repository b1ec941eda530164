"""Decoding options of `translate` and `generate`, checked together in one value."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from heedful.config import Config
from heedful.errors import is_unicode
from heedful.generation.search.logits_rules import LogitsRules
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.search.settings import Engine, SearchSettings
from heedful.generation.search.stop_strings import StringAutomaton
from heedful.interventions.kinds import NOT_A_LIST, AnyIntervention, is_list
from heedful.text.tokenizer import Tokenizer

DEFAULT_BEAM = 4
DEFAULT_TEMPERATURE = 0.8
MAX_BEAM = 1000
"""Upper limit of the beam: memory and time grow with it, and quality falls at much smaller sizes."""
MAX_LENGTH_PENALTY = 100.0
MAX_TOKENS = 1_000_000
MAX_INTEGER = 2**63 - 1
"""The largest integer of a tensor or seed."""


class DecodingConfig(Config):
    """Options of `translate` and `generate`, the same in Python and on the command line."""

    beam: int | None = Field(default=None, gt=0, le=MAX_BEAM)
    """Beam size; 1 = greedy search. None: 4 to translate, 1 to generate or to sample."""
    length_penalty: float = Field(default=1.0, ge=0.0, le=MAX_LENGTH_PENALTY)
    """α in log P / length^α: 0 favors short texts, 1 is neutral."""
    n_best: int = Field(default=1, gt=0, le=MAX_BEAM)
    """Results per text: the best hypotheses of the beam, or samples."""
    temperature: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """0 = search for the most likely text; above 0 = sample, with more variety at higher values."""
    top_k: int = Field(default=0, ge=0, le=MAX_INTEGER)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0, le=MAX_INTEGER)
    min_length: int = Field(default=0, ge=0, le=MAX_TOKENS)
    """Minimum number of tokens before a text may end."""
    max_length: int | None = Field(default=None, gt=0, le=MAX_TOKENS)
    """Maximum number of tokens to generate. None: twice the source's length plus 20, or 100 after a prompt."""
    stop: tuple[str, ...] = ()
    """Stop strings: generation ends before them."""
    prefix: str = ""
    """Required beginning of each translation."""
    forbidden: tuple[str, ...] = ()
    """Strings that must not be generated."""
    glossary: str | dict[str, str] | None = None
    """Glossary of source terms and their required translations: a file name, or the terms themselves."""
    keep: bool = True
    """Copy placeholders, tags and addresses unchanged into the translation."""
    alignments: bool = False
    """Align source words with target words."""
    word_probabilities: bool = True
    """Return the probability of each word; some backends need another pass for it."""
    exact: bool = False
    """Bitwise identical results whatever the batch; slower."""
    engine: Engine = "auto"
    """auto = CTranslate2 where it is installed and supports the request; else torch."""
    interventions: tuple[AnyIntervention, ...] | None = None
    """Changes inside the model for this call; with an empty list the same backend decodes the unchanged model."""
    int8: bool = False
    """8-bit weights: faster on a CPU, nearly the same texts."""

    @property
    def sampling(self) -> SamplingConfig | None:
        """Sampling settings, or None at temperature 0."""
        if self.temperature == 0:
            return None
        return SamplingConfig(self.temperature, self.top_k, self.top_p, self.min_p, self.seed)

    def beam_size(self, default: int = DEFAULT_BEAM) -> int:
        """The beam size, with the default worked out."""
        return self.beam or (1 if self.temperature else max(default, self.n_best))

    def search_settings(self, tokenizer: Tokenizer, vocabulary: int, default_beam: int) -> SearchSettings:
        """The search settings of these options. `tokenizer` is the target's, `vocabulary` the model's output size."""
        automaton = None
        if self.stop or self.forbidden:
            token_bytes = tokenizer.token_bytes(range(len(tokenizer)))
            automaton = StringAutomaton(token_bytes, stop=self.stop, forbidden=self.forbidden, vocabulary=vocabulary)
        return SearchSettings(
            beam=self.beam_size(default_beam),
            length_penalty=self.length_penalty,
            n_best=self.n_best,
            sampling=self.sampling,
            rules=LogitsRules(self.min_length, self.repetition_penalty, automaton),
            max_length=self.max_length,
            exact=self.exact,
            token_log_probabilities=self.word_probabilities,
            engine=self.engine,
            int8=self.int8,
        )

    @field_validator("interventions", mode="before")
    @classmethod
    def _check_interventions(cls, interventions: object) -> object:
        if interventions is not None and not is_list(interventions):
            raise ValueError(f"{NOT_A_LIST}; got {interventions!r:.60}")
        return interventions

    @model_validator(mode="after")
    def _check_consistency(self) -> DecodingConfig:
        if self.temperature and (self.beam or 1) > 1:
            raise ValueError(
                f"beam {self.beam} searches for the most likely text and temperature {self.temperature} samples: "
                "give one or the other"
            )
        limits = {"top_k": self.top_k, "top_p": self.top_p < 1, "min_p": self.min_p}
        if not self.temperature and any(limits.values()):
            name = next(name for name, is_set in limits.items() if is_set)
            raise ValueError(f"{name} limits sampling, and temperature 0 does not sample: give a temperature above 0")
        if not self.temperature and self.n_best > self.beam_size():
            raise ValueError(f"a beam of {self.beam} has no {self.n_best} best: use a beam of {self.n_best}")
        if self.int8 and self.engine == "torch":
            raise ValueError("int8 needs CTranslate2: use engine auto or ctranslate2")
        if self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is more than max_length {self.max_length}")
        if not is_unicode(self.prefix):
            raise ValueError(f"prefix {self.prefix!r:.60} is not valid Unicode")
        for name, strings in (("stop", self.stop), ("forbidden", self.forbidden)):
            if "" in strings:
                raise ValueError(f"a {name} string must not be empty")
            if broken := next((string for string in strings if not is_unicode(string)), None):
                raise ValueError(f"{name} string {broken!r:.60} is not valid Unicode")
            if match := next((string for string in strings if string in self.prefix), None):
                raise ValueError(f"prefix {self.prefix!r} contains the {name} string {match!r}")
        if both := {*self.stop} & {*self.forbidden}:
            raise ValueError(f"{min(both)!r} cannot be both a stop string and forbidden")
        return self


def prompt_decoding_config(options: dict[str, Any]) -> DecodingConfig:
    """The options of `generate`, which samples unless a beam is given."""
    temperature = 0.0 if (options.get("beam") or 1) > 1 else DEFAULT_TEMPERATURE
    return DecodingConfig(**{"temperature": temperature, **options})

"""How an answer is to be written: every setting in one value, checked together in this one place."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from heedful.config import Config
from heedful.generation.search.sampling import SamplingConfig

DEFAULT_BEAM = 4
DEFAULT_TEMPERATURE = 0.8
DEFAULT_MAX_LENGTH = 100


class DecodingConfig(Config):
    """Options of `translate` and `generate`, the same in Python and on the command line."""

    beam: PositiveInt | None = None
    """Texts kept in mind while searching; 1: greedy. None: 4 to translate, 1 to generate or to draw by chance."""
    length_penalty: float = Field(default=1.0, ge=0.0)
    """α in log P / length^α: 0 favours short texts, 1 is neutral."""
    n_best: PositiveInt = 1
    """Answers to each text: the best that were found, or so many drawn."""
    temperature: float = Field(default=0.0, ge=0.0)
    """0: the likeliest text is searched for; above: words are drawn by chance, the more freely the higher."""
    top_k: NonNegativeInt = 0
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    repetition_penalty: PositiveFloat = 1.0
    seed: NonNegativeInt = 0
    min_length: NonNegativeInt = 0
    """Tokens before a text may end."""
    max_length: PositiveInt | None = None
    """Tokens at most. None: what the source's length makes sensible, or 100 after a prompt."""
    stop: tuple[str, ...] = ()
    """Texts that end the writing, and are not part of it."""
    prefix: str = ""
    """What a translation must begin with."""
    forbidden: tuple[str, ...] = ()
    """Texts that must not be written."""
    glossary: str | dict[str, str] | None = None
    """Source terms with the target terms they require: a file of them, or the terms themselves."""
    keep: bool = True
    """Placeholders, tags and addresses come out as they went in."""
    alignments: bool = False
    """Which source word made which word."""
    word_probabilities: bool = True
    """How likely each word of a translation is: some engines need another pass to tell."""
    exact: bool = False
    """Every bit the same in any company, at the price of speed."""
    engine: Literal["auto", "torch", "ctranslate2"] = "auto"
    """auto: CTranslate2 where it is installed, can serve this and is the faster, else torch."""
    int8: bool = False
    """Weights in eight bits: faster on a CPU, nearly the same texts."""

    @property
    def sampling(self) -> SamplingConfig | None:
        """The bounds of chance, if there is to be any."""
        if self.temperature == 0:
            return None
        return SamplingConfig(self.temperature, self.top_k, self.top_p, self.min_p, self.seed)

    def beam_size(self, default: int = DEFAULT_BEAM) -> int:
        """The beam, worked out."""
        return self.beam or (1 if self.temperature else max(default, self.n_best))

    @model_validator(mode="after")
    def _not_contradictory(self) -> DecodingConfig:
        if self.temperature and (self.beam or 1) > 1:
            raise ValueError(
                f"beam {self.beam} searches for the likeliest text and temperature {self.temperature} draws by chance: "
                "give one or the other"
            )
        bounds = {"top_k": self.top_k, "top_p": self.top_p < 1, "min_p": self.min_p}
        if not self.temperature and any(bounds.values()):
            name = next(name for name, given in bounds.items() if given)
            raise ValueError(
                f"{name} bounds what is drawn by chance, and temperature 0 leaves none: give a temperature"
            )
        if not self.temperature and self.n_best > self.beam_size():
            raise ValueError(f"a beam of {self.beam} finds no {self.n_best} best: ask for a beam of {self.n_best}")
        if self.int8 and self.engine == "torch":
            raise ValueError("int8 is CTranslate2's: leave the engine open, or choose ctranslate2")
        if self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is more than max_length {self.max_length}")
        for name, texts in (("stop", self.stop), ("forbidden", self.forbidden)):
            if "" in texts:
                raise ValueError(f"a {name} text must not be empty")
            if met := next((text for text in texts if text in self.prefix), None):
                raise ValueError(f"prefix {self.prefix!r} holds the {name} text {met!r}")
        if both := {*self.stop} & {*self.forbidden}:
            raise ValueError(f"{min(both)!r} cannot both end the writing and be forbidden")
        return self


def prompt_decoding_config(options: dict[str, Any]) -> DecodingConfig:
    """The options of `generate`, which draws by chance unless a beam is asked for."""
    usual = 0.0 if (options.get("beam") or 1) > 1 else DEFAULT_TEMPERATURE
    return DecodingConfig(**{"temperature": usual, **options})

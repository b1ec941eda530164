"""Requests to OpenAI's completions, as options of `generate`; what is not supported is refused by name."""

from __future__ import annotations

from secrets import randbits
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from heedful.generation.decoding_config import MAX_INTEGER
from heedful.server.api.request_fields import MAX_STRINGS, ShortText
from heedful.server.error_responses import RequestError
from heedful.server.server_settings import RequestLimits

DEFAULT_TOKENS = 16
MAX_LOGPROBS = 20
UNSUPPORTED = {
    "suffix": "text is continued, not inserted",
    "logit_bias": "use `forbidden` of /api/v1/generate",
    "presence_penalty": "use `repetition_penalty`",
    "frequency_penalty": "use `repetition_penalty`",
}


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class CompletionRequest(BaseModel):
    """OpenAI's fields, and `top_k`, `min_p` and `repetition_penalty` as other servers have them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(max_length=200)
    prompt: str | list[str] | list[int] | list[list[int]] = ""
    max_tokens: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    top_k: int | None = Field(default=None, ge=0, le=MAX_INTEGER)
    min_p: float | None = Field(default=None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(default=None, gt=0.0, le=100.0)
    n: int | None = Field(default=None, ge=1)
    best_of: int | None = Field(default=None, ge=1)
    stop: ShortText | list[ShortText] | None = None
    seed: int | None = Field(default=None, ge=-MAX_INTEGER - 1, le=MAX_INTEGER)
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    suffix: str | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    @property
    def prompts(self) -> list[str]:
        """The prompts; RequestError for token ids, which belong to another tokenizer."""
        prompts = [self.prompt] if isinstance(self.prompt, str) else list(self.prompt)
        if not prompts:
            raise RequestError(400, "prompt: send a text, or a list of texts")
        if not all(isinstance(prompt, str) for prompt in prompts):
            raise RequestError(400, "prompt: token ids are not supported; send text")
        return [str(prompt) for prompt in prompts]

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def tokens(self) -> int:
        return DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def samples(self) -> int:
        """Results to generate for a prompt: at temperature 0 all choices are the same."""
        return self.choices if self.temperature != 0 else 1

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def check(self, limits: RequestLimits) -> None:
        """Refuse what is not supported or beyond the limits."""
        for name, advice in UNSUPPORTED.items():
            if getattr(self, name):
                raise RequestError(400, f"{name} is not supported: {advice}")
        if self.best_of is not None and self.best_of != self.choices:
            raise RequestError(400, "best_of is not supported unless it equals n: use `beam` of /api/v1/generate")
        if self.choices > limits.results:
            raise RequestError(400, f"n: at most {limits.results} is served")
        if self.tokens > limits.tokens:
            raise RequestError(400, f"max_tokens: at most {limits.tokens:,} is served")
        if len(self.stop_strings) > MAX_STRINGS:
            raise RequestError(400, f"stop: at most {MAX_STRINGS} strings")

    def options(self) -> dict[str, Any]:
        """Keyword arguments of `iter_generate`."""
        temperature = 1.0 if self.temperature is None else self.temperature
        limits = {"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p} if temperature else {}
        options: dict[str, Any] = {
            "temperature": temperature,
            "max_length": self.tokens,
            "n_best": self.samples,
            "stop": self.stop_strings or None,
            "repetition_penalty": self.repetition_penalty,
            **limits,
        }
        if temperature:
            options["seed"] = randbits(62) if self.seed is None else self.seed & MAX_INTEGER
        return {name: value for name, value in options.items() if value is not None}

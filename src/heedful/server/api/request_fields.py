"""Request and response fields that several tasks share, and the JSON responses made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from heedful.generation.decoding_config import MAX_INTEGER, MAX_LENGTH_PENALTY
from heedful.generation.results import Continuation, Translation
from heedful.interventions.kinds import JsonIntervention
from heedful.server.error_responses import RequestError
from heedful.server.model_registry import RegisteredModel
from heedful.server.server_settings import RequestLimits
from heedful.server.strict_json import to_json_bytes

MAX_STRINGS = 32
TEXTS_OF_INTERVENTIONS = ("text", "target", "toward", "away")
ShortText = Annotated[str, Field(min_length=1, max_length=200)]
Texts = Annotated[str | list[str], Field(description="A text, or a list of texts.")]


class ApiModel(BaseModel):
    """A request; a field that it does not have is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ErrorDetail(BaseModel):
    """What went wrong, without the request's content."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": description}
    for status, description in {
        400: "The body is malformed.",
        401: "A token is required.",
        403: "Another origin.",
        404: "No such model.",
        413: "The body is too large.",
        415: "Not JSON.",
        422: "The request does not fit the schema, the model or the limits.",
        429: "Too many requests wait; see Retry-After.",
        500: "Internal error.",
        503: "Shutting down, or past the deadline.",
    }.items()
}


class ModelRequest(ApiModel):
    """A request to a model."""

    model: str | None = Field(
        default=None, max_length=200, description="A served model's name; may be left out if one model has the task."
    )
    interventions: list[JsonIntervention] | None = Field(
        default=None, description="Changes inside the model for this request; parts: GET /api/v1/models/{name}/parts."
    )

    def check_interventions(self, limits: RequestLimits) -> None:
        if len(self.interventions or ()) > limits.interventions:
            raise RequestError(422, f"at most {limits.interventions} interventions are served")
        for intervention in self.interventions or ():
            texts = [text for name in TEXTS_OF_INTERVENTIONS if (text := getattr(intervention, name, None)) is not None]
            if longest := max((len(text) for text in texts if len(text) > limits.look_characters), default=0):
                limit = limits.look_characters
                raise RequestError(
                    422, f"an intervention's text of {longest:,} characters; at most {limit:,} are served"
                )


class DecodingRequest(ModelRequest):
    """Options of search and sampling, as in `DecodingConfig`; null: the library's default."""

    beam: int | None = Field(default=None, ge=1, description="Beam size; 1 = greedy search.")
    length_penalty: float | None = Field(default=None, ge=0.0, le=MAX_LENGTH_PENALTY)
    n_best: int | None = Field(default=None, ge=1, description="Results per text; those after the best: alternatives.")
    temperature: float | None = Field(default=None, ge=0.0, le=100.0, description="0 = search, above = sample.")
    top_k: int | None = Field(default=None, ge=0, le=MAX_INTEGER)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    min_p: float | None = Field(default=None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(default=None, gt=0.0, le=100.0)
    seed: int | None = Field(default=None, ge=0, le=MAX_INTEGER)
    min_length: int | None = Field(default=None, ge=0, description="Tokens before a text may end.")
    max_length: int | None = Field(default=None, ge=1, description="Tokens to generate at most.")
    stop: list[ShortText] | None = Field(default=None, max_length=MAX_STRINGS)
    forbidden: list[ShortText] | None = Field(default=None, max_length=MAX_STRINGS)
    exact: bool = Field(default=False, description="Bitwise identical results whatever the batch; slower.")
    token_probabilities: bool = Field(default=False, description="Return the probability of each token.")

    def options(self, limits: RequestLimits, *names: str) -> dict[str, Any]:
        """The decoding options that were set, checked against the limits; `names`: options of one task."""
        self.check_interventions(limits)
        for name, value, limit in (
            ("beam", self.beam, limits.beam),
            ("n_best", self.n_best, limits.results),
            ("max_length", self.max_length, limits.tokens),
            ("min_length", self.min_length, limits.tokens),
        ):
            if value is not None and value > limit:
                raise RequestError(422, f"{name}: at most {limit:,} is served")
        shared = set(DecodingRequest.model_fields) - {"model", "token_probabilities"}
        values = {name: getattr(self, name) for name in (*sorted(shared), *names)}
        if values["max_length"] is None:
            values.pop("max_length")
        return {name: value for name, value in values.items() if value is not None and value is not False}


class ScoredText(BaseModel):
    """A word or token and its probability, given all before it."""

    text: str
    probability: float | None


class Generated(BaseModel):
    """A text that a model generated."""

    text: str
    log_probability: float | None = Field(description="The model's, summed over all tokens.")
    score: float | None = Field(description="What alternatives are ranked by.")
    words: tuple[ScoredText, ...] = ()
    tokens: list[ScoredText] | None = None


def as_list(texts: str | Sequence[str]) -> list[str]:
    """The texts of a field that takes one text or a list."""
    return [texts] if isinstance(texts, str) else list(texts)


def json_response(value: Any) -> Response:
    """A response with this JSON value, serialized once."""
    return Response(to_json_bytes(value), media_type="application/json")


def results_response(name: str, results: Sequence[Any]) -> Response:
    """The response of a task: the model's name and one result per text."""
    return json_response({"model": name, "results": results})


def generated_json(
    results: Sequence[Translation | Continuation], served: RegisteredModel, *, tokens: bool
) -> list[dict[str, Any]]:
    """Generated texts as JSON values, with the probability of each token if `tokens`."""
    answers = [result.to_json() for result in results]
    for answer, result in zip(answers, results, strict=True) if tokens else ():
        others: Sequence[Translation | Continuation] = result.alternatives
        for output, scored in zip((answer, *answer.get("alternatives", ())), (result, *others), strict=True):
            output["tokens"] = token_probabilities(scored, served)
    return answers


def token_probabilities(result: Translation | Continuation, served: RegisteredModel) -> list[dict[str, Any]]:
    """The tokens that were generated, with their probabilities."""
    rows: list[dict[str, Any]] = []
    for hypothesis in result.hypotheses:
        pieces = served.trained.tokenizers[-1].pieces(hypothesis.tokens)
        scores = hypothesis.token_log_probabilities[: len(pieces)]
        rows += [{"text": piece, "probability": math.exp(score)} for piece, score in zip(pieces, scores, strict=True)]
    return rows

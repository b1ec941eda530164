"""POST /api/v1/translate."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from heedful.server.api.request_fields import (
    PROBLEMS,
    DecodingRequest,
    Generated,
    ShortText,
    Texts,
    as_list,
    generated_json,
    results_response,
)
from heedful.server.serving import Serving
from heedful.server.task_route import TaskRoute

MAX_TERMS = 1_000
router = APIRouter(prefix="/api/v1", tags=["tasks"], responses=PROBLEMS, route_class=TaskRoute)
Glossary = Annotated[dict[ShortText, ShortText], Field(max_length=MAX_TERMS)]


class TranslateRequest(DecodingRequest):
    """Texts to translate."""

    text: Texts
    prefix: str = Field(default="", max_length=2_000, description="What the translation must begin with.")
    glossary: Glossary | None = Field(default=None, description="Source terms with the target terms they require.")
    keep: bool = Field(default=True, description="Copy placeholders, tags and addresses unchanged.")
    alignments: bool = Field(default=False, description="Align source words with target words.")
    word_probabilities: bool = True


class TranslatedText(Generated):
    """A translation with its alternatives."""

    source: str
    alignment: list[tuple[int, int]] | None = Field(default=None, description="Pairs of source word and target word.")
    alternatives: tuple[Generated, ...] = ()
    warnings: tuple[str, ...] = ()


class TranslateResponse(BaseModel):
    """One translation per text."""

    model: str
    results: list[TranslatedText]


@router.post("/translate", response_model=TranslateResponse)
async def translate(request: Request, body: TranslateRequest) -> Response:
    """Translate texts, with scores, probabilities, alternatives and word alignments."""
    serving, texts = Serving.of(request), as_list(body.text)
    served = serving.model(body.model, "translate")
    serving.check_texts(texts)
    options = body.options(serving.limits, "prefix", "glossary", "alignments")
    options |= {"keep": body.keep, "word_probabilities": body.word_probabilities or body.token_probabilities}
    results = await serving.run(request, served, "translate", texts, options)
    return results_response(served.name, generated_json(results, served, tokens=body.token_probabilities))

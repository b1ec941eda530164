"""Routes for the studio's views of one model: a token in a layer, weighted attention, a beam search, word vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from heedful.errors import UsageError
from heedful.inference.beam_tree import beam_tree
from heedful.inference.trained_model import TrainedModel
from heedful.inspection.value_weighted_attention import value_weighted_attention
from heedful.inspection.walkthrough import walkthrough
from heedful.server.api.request_fields import PROBLEMS, ModelRequest, json_response
from heedful.server.serving import Serving
from heedful.vectors.pca_plot import project_to_2d

router = APIRouter(prefix="/api/v1/studio", tags=["studio"], responses=PROBLEMS)
MAP_WORDS = 400
Inspect = Callable[[TrainedModel], dict[str, Any]]


class WalkthroughRequest(ModelRequest):
    """A token to follow through a layer."""

    text: str
    target: str | None = None
    stack: Literal["encoder", "decoder"] | None = None
    layer: int = Field(default=0, ge=0)
    position: int = Field(default=0, ge=0, description="The token, counted from 0.")
    head: int = Field(default=0, ge=0)


class ValueWeightedRequest(ModelRequest):
    """A text whose attention to weight by the values."""

    text: str
    target: str | None = None


class BeamTreeRequest(ModelRequest):
    """A text whose search to show."""

    text: str
    beam: int = Field(default=3, ge=1, le=8)
    length_penalty: float = Field(default=1.0, ge=0.0, le=10.0)
    max_length: int = Field(default=40, ge=1, le=200)


class NeighborsRequest(ModelRequest):
    """A word, or a sum and difference of words: king - man + woman."""

    plus: list[str] = Field(min_length=1, max_length=4)
    minus: list[str] = Field(default=[], max_length=4)
    top: int = Field(default=12, ge=1, le=50)


class WordMapRequest(ModelRequest):
    """Words to place on a map; none: the most frequent ones."""

    words: list[str] = Field(default=[], max_length=MAP_WORDS)
    count: int = Field(default=150, ge=3, le=MAP_WORDS)


class SentencesRequest(ModelRequest):
    """Sentences to place on a map, and to compare with each other."""

    texts: list[str] = Field(min_length=1, max_length=64)


@router.post("/walkthrough")
async def walk_through(request: Request, body: WalkthroughRequest) -> Response:
    """Follow one token through one layer: every vector and score as a number."""
    texts = [body.text, *([body.target] if body.target else [])]

    def answer(trained: TrainedModel) -> dict[str, Any]:
        text_pass = trained.text_pass(body.text, body.target, interventions=body.interventions)

        def run(passes: Sequence[Any]) -> list[Any]:
            return [
                walkthrough(
                    trained, one_pass, stack=body.stack, layer=body.layer, position=body.position, head=body.head
                ).to_json()
                for one_pass in passes
            ]

        result: dict[str, Any] = trained.intervened(run, [text_pass], body.interventions, lambda _: body.text)[0]
        return result

    return await _answer(request, body, "walkthrough", texts, answer)


@router.post("/value-weighted")
async def value_weighted(request: Request, body: ValueWeightedRequest) -> Response:
    """Every head's attention as weight × ‖value‖, each row scaled to sum to 1, in the form of /api/v1/look."""
    texts = [body.text, *([body.target] if body.target else [])]

    def answer(trained: TrainedModel) -> dict[str, Any]:
        text_pass = trained.text_pass(body.text, body.target, interventions=body.interventions)

        def run(passes: Sequence[Any]) -> list[Any]:
            return [
                [part.to_json() for part in value_weighted_attention(trained.model, one_pass).values()]
                for one_pass in passes
            ]

        return {"attention": trained.intervened(run, [text_pass], body.interventions, lambda _: body.text)[0]}

    return await _answer(request, body, "value-weighted attention", texts, answer)


@router.post("/beam-tree")
async def search_tree(request: Request, body: BeamTreeRequest) -> Response:
    """Every hypothesis that a beam search tried, kept, pruned or finished."""

    def answer(trained: TrainedModel) -> dict[str, Any]:
        return beam_tree(
            trained, body.text, beam=body.beam, length_penalty=body.length_penalty, max_length=body.max_length,
            interventions=body.interventions,
        ).to_json()  # fmt: skip

    return await _answer(request, body, "beam tree", [body.text], answer)


@router.post("/neighbors")
async def neighbors(request: Request, body: NeighborsRequest) -> Response:
    """The words nearest to a word, or to a sum and difference of words."""

    def answer(trained: TrainedModel) -> dict[str, Any]:
        table, excluded = trained.words, {*body.plus, *body.minus}
        query = sum(table.unit_vectors[table.index(word)] for word in body.plus) - sum(
            (table.unit_vectors[table.index(word)] for word in body.minus), 0.0
        )
        cosines = table.unit_vectors @ query / max(float((query**2).sum()) ** 0.5, 1e-12)
        order = (-cosines).argsort()
        near = [index for index in order[: body.top + len(excluded)] if table.words[index] not in excluded]
        return {
            "words": len(table),
            "neighbors": [
                {"word": table.words[index], "cosine": round(float(cosines[index]), 4)} for index in near[: body.top]
            ],
        }

    return await _answer(request, body, "neighbors", [*body.plus, *body.minus], answer)


@router.post("/word-map")
async def word_map(request: Request, body: WordMapRequest) -> Response:
    """Words on the plane of their first two principal components."""

    def answer(trained: TrainedModel) -> dict[str, Any]:
        table = trained.words
        words = [word for word in body.words if word in table] or readable_words(table.words)[: body.count]
        if len(words) < 3:
            raise UsageError(f"a map needs three words or more that the model knows; it knows {len(table):,}")
        return _map(words, table.table[[table.index(word) for word in words]])

    return await _answer(request, body, "word map", body.words, answer)


@router.post("/sentence-map")
async def sentence_map(request: Request, body: SentencesRequest) -> Response:
    """Sentences on a plane, and the cosine of every pair."""

    def answer(trained: TrainedModel) -> dict[str, Any]:
        vectors = trained.embed(body.texts, normalize=True, interventions=body.interventions)
        result = _map(body.texts, vectors) if len(body.texts) > 2 else {}
        return {**result, "cosines": (vectors @ vectors.T).round(4).tolist()}

    return await _answer(request, body, "sentence map", body.texts, answer)


def readable_words(words: Sequence[str]) -> list[str]:
    """Words of two letters or more, in the order of the vocabulary, where frequent ones come first."""
    return [word for word in words if len(word) > 1 and word.isalpha()] or [word for word in words if word.isalnum()]


def _map(labels: Sequence[str], vectors: Any) -> dict[str, Any]:
    points, variance = project_to_2d(vectors)
    return {"labels": list(labels), "points": points.round(5).tolist(), "variance": [round(v, 4) for v in variance]}


async def _answer(request: Request, body: ModelRequest, name: str, texts: Sequence[str], function: Inspect) -> Response:
    serving = Serving.of(request)
    served = serving.model(body.model)
    body.check_interventions(serving.limits)
    serving.check_texts(texts, characters=serving.limits.look_characters)
    return json_response(await serving.call(request, served, name, texts, function))

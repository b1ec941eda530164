"""Routes that measure a model on several texts: its parts, a comparison with another model, a word's occurrences."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import Field

from heedful.data.batching import evenly_spaced
from heedful.errors import UsageError
from heedful.evaluation.file_comparison import compare_files
from heedful.inference.trained_model import TrainedModel
from heedful.lab.printed_examples import NOT_ON_YOUR_LIFE, PRINTED_WEIGHTS, printed_examples
from heedful.server.api.request_fields import PROBLEMS, ApiModel, ModelRequest, json_response
from heedful.server.error_responses import RequestError
from heedful.server.model_registry import RegisteredModel
from heedful.server.serving import Serving
from heedful.studio.recorded_texts import validation_files
from heedful.training.census_files import census, census_examples

router = APIRouter(prefix="/api/v1/studio", tags=["studio"], responses=PROBLEMS)
MAX_PAIRS, CENSUS_TEXTS, SHOWN = 200, 64, 30
NO_CENSUS: dict[str, Any] = {"parts": []}


class CensusRequest(ApiModel):
    """A model whose parts to measure."""

    model: str


class CompareRequest(ApiModel):
    """Two models and the pairs to compare them on; none: the validation text of the first, evenly spaced."""

    model: str
    other: str
    pairs: list[tuple[str, str]] = Field(default=[], max_length=MAX_PAIRS)


class OccurrencesRequest(ModelRequest):
    """A word in several texts."""

    texts: list[str] = Field(min_length=1, max_length=12)
    word: str = Field(min_length=1, max_length=100)
    layer: int = Field(default=-1, ge=-1, description="The layer whose states are compared; -1: the last.")


@router.get("/worked-numbers")
async def worked_numbers() -> Response:
    """The worked numbers and errata of the notes, computed now, and the scores of their table."""
    examples = [asdict(example) for example in printed_examples()]
    table = {"scores": NOT_ON_YOUR_LIFE.double().round(decimals=4).tolist(), "printed": PRINTED_WEIGHTS.tolist()}
    return json_response({"examples": examples, "table": table})


@router.get("/census/{name}")
async def measured_census(request: Request, name: str) -> Response:
    """The census of a model that was taken since the server started; without parts if there is none."""
    served = Serving.of(request).model(name)
    return json_response(_censuses(request).get((served.name, served.loaded_at), NO_CENSUS))


@router.post("/census")
async def take_census(request: Request, body: CensusRequest) -> Response:
    """Switch every part of a model off in turn on its validation text, and measure the change of the scores."""
    serving = Serving.of(request)
    served = serving.model(body.model)
    files, columns = validation_files(served.trained.folder)
    if not files:
        raise UsageError("the validation text of this model is not on this disk; use heedful census MODEL DATA")

    def measure(trained: TrainedModel) -> dict[str, Any]:
        result = census(trained, *files, to="zero", limit=CENSUS_TEXTS, columns=columns, show_progress=False)
        return result.to_json()

    result = await serving.call(request, served, "census", (), measure)
    _censuses(request)[served.name, served.loaded_at] = result
    return json_response(result)


@router.post("/compare")
async def compare(request: Request, body: CompareRequest) -> Response:
    """Score two models on the same pairs: over all of them and by the length of the source."""
    serving = Serving.of(request)
    served, other = serving.model(body.model), _other(serving, body)
    pairs = body.pairs or await asyncio.to_thread(_validation_pairs, served.trained)
    for texts in zip(*pairs, strict=True):  # sources, then references
        serving.check_texts(texts)

    def measure(trained: TrainedModel) -> dict[str, Any]:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "pairs.tsv"
            with file.open("w", encoding="utf-8", newline="") as rows:
                csv.writer(rows, delimiter="\t", lineterminator="\n").writerows(
                    [" ".join(text.split()) for text in pair] for pair in pairs
                )
            return compare_files(trained, other.trained, file, columns="1,2", examples=SHOWN).to_json()

    return json_response(await serving.call(request, served, "compare", [source for source, _ in pairs], measure))


def _validation_pairs(trained: TrainedModel) -> list[tuple[str, str]]:
    files, columns = validation_files(trained.folder)
    if not files:
        raise UsageError("the validation text of this model is not on this disk; paste pairs instead")
    examples = census_examples(trained, files, columns, "skip")
    pairs = [example for example in examples if not isinstance(example, str)]
    return [pairs[index] for index in evenly_spaced(len(pairs), MAX_PAIRS)]


@router.post("/occurrences")
async def occurrences(request: Request, body: OccurrencesRequest) -> Response:
    """The vectors of one word in several sentences, compared by their cosines."""
    serving = Serving.of(request)
    served = serving.model(body.model)
    serving.check_texts(body.texts, characters=serving.limits.look_characters)

    def measure(trained: TrainedModel) -> dict[str, Any]:
        wanted = body.word.casefold()
        seen, vectors = list[dict[str, str]](), list[Any]()
        for states in trained.word_states(body.texts, layer=body.layer):
            for word in states.words:
                if word.text.casefold() == wanted:
                    before, after = states.text[: word.start], states.text[word.end :]
                    seen.append({"before": before, "word": states.text[word.start : word.end], "after": after})
                    vectors.append(word.vector)
        if not seen:
            raise UsageError("this word is in none of the sentences")
        return {"occurrences": seen, "cosines": cosines(vectors), "layer": body.layer}

    return json_response(await serving.call(request, served, "occurrences", body.texts, measure))


def cosines(vectors: Sequence[Any]) -> list[list[float]]:
    """The cosine of every pair of vectors."""
    table = np.stack(vectors)
    unit = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    result: list[list[float]] = (unit @ unit.T).astype(float).round(4).tolist()
    return result


def _other(serving: Serving, body: CompareRequest) -> RegisteredModel:
    other = serving.model(body.other)
    if other.task != serving.model(body.model).task:
        raise RequestError(422, "only models of one task can be compared")
    return other


def _censuses(request: Request) -> dict[tuple[str, float], dict[str, Any]]:
    if not hasattr(request.app.state, "censuses"):
        request.app.state.censuses = {}
    taken: dict[tuple[str, float], dict[str, Any]] = request.app.state.censuses
    return taken

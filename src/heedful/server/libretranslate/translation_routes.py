"""LibreTranslate's interface: /translate, /translate_file, /detect, /languages, /frontend/settings."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from heedful.server.api.request_fields import json_response
from heedful.server.error_responses import RequestError, validation_problems, without_content
from heedful.server.language_pairs import language_name
from heedful.server.libretranslate.html_translation import join_html, split_html
from heedful.server.libretranslate.language_detection import KNOWN_LANGUAGES, LanguageDetector
from heedful.server.libretranslate.translation_models import choose_model, served_pairs
from heedful.server.model_registry import RegisteredModel
from heedful.server.serving import Serving
from heedful.server.task_route import TaskRoute

FILE_FORMATS = (".txt", ".html")
router = APIRouter(tags=["LibreTranslate"], route_class=TaskRoute)
Language = Annotated[str, Field(min_length=1, max_length=20)]
Body = TypeVar("Body", bound=BaseModel)


class LibreError(BaseModel):
    """The body of LibreTranslate's errors."""

    error: str


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": LibreError} for status in (400, 401, 403, 404, 413, 415, 422, 429, 500, 503)
}


class LibreRequest(BaseModel):
    """Fields of every request; as LibreTranslate does, unknown ones are ignored."""

    model_config = ConfigDict(extra="ignore")

    api_key: str | None = Field(default=None, description="The server's token.")


class LibreTranslateRequest(LibreRequest):
    """A text, or a list of texts."""

    q: str | list[str]
    source: Language = Field(description="A language code, or auto.")
    target: Language
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, BeforeValidator(lambda value: 0 if value in (None, "") else value), Field(ge=0)] = 0


class Detection(BaseModel):
    """A language and how sure it is, in percent."""

    confidence: float
    language: str


class LibreTranslation(BaseModel):
    """The translation of a text, or those of a list."""

    translated_text: str | list[str] = Field(alias="translatedText")
    alternatives: list[str] | list[list[str]] | None = None
    detected_language: Detection | list[Detection] | None = Field(default=None, alias="detectedLanguage")


class DetectRequest(LibreRequest):
    """A text whose language is asked for."""

    q: str | list[str]


class LibreLanguage(BaseModel):
    """A language that is translated from, and those it is translated to."""

    code: str
    name: str
    targets: list[str]


class UploadedFile(BaseModel):
    """A file of a form."""

    name: str
    text: str

    @property
    def is_html(self) -> bool:
        return self.name.lower().endswith(".html")


def as_file(value: Any) -> Any:
    """A field without a file's name as a text file."""
    return {"name": ".txt", "text": value} if isinstance(value, str) else value


class LibreFileRequest(LibreRequest):
    """A file to translate."""

    file: Annotated[UploadedFile, BeforeValidator(as_file)]
    source: Language
    target: Language


class LibreFile(BaseModel):
    """The translated file, as a data: URL: the server stores nothing."""

    translated_file_url: str = Field(alias="translatedFileUrl")


def accepts(model: type[BaseModel]) -> dict[str, Any]:
    """The request body for OpenAPI: JSON or a form."""
    schema = model.model_json_schema()
    types = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in types}}}


@router.post(
    "/translate", response_model=LibreTranslation, responses=PROBLEMS, openapi_extra=accepts(LibreTranslateRequest)
)
async def translate(request: Request) -> Response:
    """Translate a text or a list of texts, from a language that may be detected."""
    serving, body = Serving.of(request), parse_body(request, LibreTranslateRequest)
    texts = [body.q] if isinstance(body.q, str) else body.q
    serving.check_texts(texts)
    if body.alternatives >= serving.limits.results:
        raise RequestError(400, f"alternatives: at most {serving.limits.results - 1} are served")
    served, detected = await asyncio.to_thread(
        choose_model, serving.registry, body.source, body.target, " ".join(texts)
    )
    if served is None:
        answer: list[tuple[str, list[str]]] = [(text, []) for text in texts]
    elif body.format == "html":
        answer = [(page, []) for page in await translate_pages(request, served, texts)]
    else:
        options = {"n_best": body.alternatives + 1, "word_probabilities": False}
        results = await serving.run(request, served, "translate", texts, options)
        answer = [(result.text, [other.text for other in result.alternatives]) for result in results]
    single = isinstance(body.q, str)
    values: dict[str, Any] = {"translatedText": answer[0][0] if single else [text for text, _ in answer]}
    if body.alternatives:
        values["alternatives"] = answer[0][1] if single else [others for _, others in answer]
    if detected is not None:
        detection = {"confidence": round(detected.confidence, 1), "language": detected.language}
        values["detectedLanguage"] = detection if single else [detection] * len(texts)
    return json_response(values)


@router.post("/detect", response_model=list[Detection], responses=PROBLEMS, openapi_extra=accepts(DetectRequest))
async def detect(request: Request) -> Response:
    """Detect the language of a text, among those of the served translators or, if they state none, all known ones."""
    serving, body = Serving.of(request), parse_body(request, DetectRequest)
    texts = [body.q] if isinstance(body.q, str) else body.q
    serving.check_texts(texts)
    codes = dict.fromkeys(code for pair in served_pairs(serving.registry) for code in pair)
    detector = LanguageDetector(codes or KNOWN_LANGUAGES)
    results = await asyncio.to_thread(detector.detect, " ".join(texts))  # its first texts need profiles of languages
    return json_response(
        [{"confidence": round(result.confidence, 1), "language": result.language} for result in results]
    )


@router.get("/languages", response_model=list[LibreLanguage], responses=PROBLEMS)
async def languages(request: Request) -> Response:
    """The languages of the served translators."""
    targets: dict[str, list[str]] = {}
    for pair in served_pairs(Serving.of(request).registry):
        targets.setdefault(pair.source, []).append(pair.target)
        targets.setdefault(pair.target, [])
    return json_response([
        {"code": code, "name": language_name(code), "targets": sorted(targets[code])} for code in sorted(targets)
    ])  # fmt: skip


@router.get("/frontend/settings", response_model=dict[str, Any], responses=PROBLEMS)
async def frontend_settings(request: Request) -> Response:
    """The settings that LibreTranslate's page and apps ask for first."""
    serving = Serving.of(request)
    pair = next(iter(served_pairs(serving.registry)), None)
    source, target = (pair.source, pair.target) if pair else ("auto", "auto")
    return json_response({
        "apiKeys": serving.settings.token is not None,
        "charLimit": serving.limits.characters,
        "filesTranslation": True,
        "frontendTimeout": 500,
        "keyRequired": serving.settings.token is not None,
        "language": {
            "source": {"code": source, "name": language_name(source)},
            "target": {"code": target, "name": language_name(target)},
        },
        "suggestions": False,
        "supportedFilesFormat": list(FILE_FORMATS),
    })  # fmt: skip


@router.post(
    "/translate_file",
    response_model=LibreFile,
    responses=PROBLEMS,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "required": ["file", "source", "target"],
                        "properties": {
                            "file": {"type": "string", "format": "binary"},
                            "source": {"type": "string"},
                            "target": {"type": "string"},
                        },
                    }
                }
            },
        }
    },
)
async def translate_file(request: Request) -> Response:
    """Translate a text file line by line, or a page; the answer holds the file, nothing is stored."""
    serving, body = Serving.of(request), parse_body(request, LibreFileRequest)
    file = body.file
    if not file.name.lower().endswith(FILE_FORMATS):
        raise RequestError(400, f"the kind of file is not supported; supported: {', '.join(FILE_FORMATS)}")
    lines = [file.text] if file.is_html else file.text.split("\n")
    languages = body.source.strip(), body.target.strip()
    served, _ = await asyncio.to_thread(choose_model, serving.registry, *languages, file.text[:2_000])
    if served is None:
        translated = lines
    elif file.is_html:
        translated = await translate_pages(request, served, lines)
    else:
        translated = await translate_all(request, served, lines)
    content = "\n".join(translated).encode()
    kind = "text/html" if file.is_html else "text/plain"
    return json_response({"translatedFileUrl": f"data:{kind};charset=utf-8;base64,{b64encode(content).decode()}"})


async def translate_pages(request: Request, served: RegisteredModel, pages: list[str]) -> list[str]:
    """Translate HTML pages or fragments."""
    layouts = await asyncio.to_thread(lambda: [split_html(page) for page in pages])
    texts = [piece.text for layout in layouts for piece in layout if piece.translate]
    translations = iter(await translate_all(request, served, texts))
    parts = [(layout, [next(translations) for piece in layout if piece.translate]) for layout in layouts]
    return await asyncio.to_thread(lambda: [join_html(layout, translated) for layout, translated in parts])


async def translate_all(request: Request, served: RegisteredModel, texts: list[str]) -> list[str]:
    """Translate any number of texts, as many at a time as one request may have."""
    serving, translations = Serving.of(request), list[str]()
    for start in range(0, len(texts), serving.limits.texts):
        part = texts[start : start + serving.limits.texts]
        serving.check_texts(part)
        results = await serving.run(request, served, "translate", part, {"word_probabilities": False})
        translations += [result.text for result in results]
    return translations


def parse_body(request: Request, model: type[Body]) -> Body:
    """The body, which the guard has parsed as JSON or as a form."""
    parsed = request.scope.get("parsed_body")
    if not isinstance(parsed, dict):
        raise RequestError(400, "the body must be an object with the fields of the request")
    try:
        return model.model_validate(parsed)
    except ValidationError as error:
        raise RequestError(400, without_content(validation_problems(error.errors()), parsed)) from None

"""Requests to the engine, the jobs they are split into (one per text), and how a model serves a batch of jobs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from heedful.engine.ticket import Ticket
from heedful.errors import UsageError
from heedful.inference.trained_model import TrainedModel

EngineTask = Literal["translate", "generate", "classify", "fill", "answer", "embed", "call"]


@dataclass(frozen=True)
class EngineRequest:
    """A client's request to a model: texts and the options of the method that serves the task."""

    model: str
    task: EngineTask
    texts: Sequence[Any] = ()
    """Strings; for `answer` pairs of question and passage, for `classify` also pairs of texts."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of iter_translate, iter_generate, classify, fill, answer or iter_embed."""
    client: str = ""
    """Client identifier: clients are served in turn."""
    deadline: float | None = None
    """Deadline, on the clock of `time.monotonic`."""
    stream: bool = False
    """Whether to stream the continuation of one prompt (`generate`)."""
    call: Callable[[Any], Any] | None = None
    """For task `call`: a function of the trained model."""


@dataclass(eq=False)
class ServedModel:
    """A model under the name it is served by, with the counts for `stats`; replacing the model creates a new object."""

    name: str
    trained: TrainedModel
    """The model for micro-batches and calls."""
    shared: TrainedModel | None = None
    """The same model with continuous batching: texts join and leave the batch at any decode step."""
    requests: int = 0
    texts: int = 0
    tokens: int = 0
    """Tokens generated."""
    failures: int = 0

    def count(self, tokens: int) -> None:
        """Count tokens that were generated."""
        self.tokens += tokens


@dataclass(eq=False, slots=True)
class Job:
    """One text of a request in the engine's queue or in execution."""

    served: ServedModel
    trained: TrainedModel
    request: EngineRequest
    options: Mapping[str, Any]
    text: Any
    index: int
    ticket: Ticket
    group: Hashable
    """Jobs of one group can share a batch: one model, task and set of options."""

    @property
    def length(self) -> int:
        """Characters to read, which determine how long the job takes."""
        return len(self.text) if isinstance(self.text, str) else sum(map(len, self.text))


def run_jobs(jobs: Sequence[Job]) -> list[Any]:
    """The results of a batch of jobs of one group, by the library's own methods."""
    request, trained, options = jobs[0].request, jobs[0].trained, dict(jobs[0].options)
    texts = [job.text for job in jobs]
    model: Any = trained
    match request.task:
        case "translate":
            return list(model.iter_translate(texts, **options))
        case "generate":
            return list(model.iter_generate(texts, **options))
        case "answer":
            questions, passages = zip(*texts, strict=True)
            return list(model.answer(questions, passages, **options))
        case "embed":
            return list(model.iter_embed(texts, **options))
        case "call":
            assert request.call is not None
            return [request.call(trained)]
    return list(getattr(model, request.task)(texts, **options))


def stream_job(job: Job) -> Iterator[str]:
    """The continuation of a job's prompt, piece by piece."""
    model: Any = job.trained
    pieces: Iterator[str] = model.stream(job.text, **job.options)
    return pieces


def check_task(trained: TrainedModel, request: EngineRequest) -> None:
    """Raise UsageError if the model cannot do the task, or the texts have the wrong type for it."""
    if request.task == "call":
        return
    if not hasattr(trained, "iter_translate" if request.task == "translate" else request.task):
        raise UsageError(f"{request.model} is {trained.kind}, which does not {request.task}")
    if request.stream and (request.task != "generate" or len(request.texts) != 1):
        raise UsageError("a stream continues one prompt of a language model")
    for text in request.texts:
        parts = text if isinstance(text, tuple) and request.task in ("answer", "classify") else (text,)
        if not all(isinstance(part, str) for part in parts) or (request.task == "answer" and len(parts) != 2):
            expected = "a pair of question and passage" if request.task == "answer" else "a string"
            raise UsageError(f"each text to {request.task} must be {expected}")

"""The tree of a beam search: every hypothesis that was tried, kept, pruned or finished, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from heedful.errors import UsageError, require_positive
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.decoding_config import DecodingConfig
from heedful.generation.search.hypotheses import BeamStep, Hypothesis
from heedful.inference.generator import Generator
from heedful.inference.trained_model import TrainedModel
from heedful.inference.translator import Translator
from heedful.interventions.kinds import Intervention, as_interventions
from heedful.text.special_tokens import END
from heedful.text.tokenizer import Tokenizer

Fate = Literal["kept", "pruned", "ended"]


@dataclass(frozen=True)
class BeamNode:
    """A hypothesis: that of `parent`, extended by one token."""

    parent: int | None
    """Index of the node it extends; None for the first tokens."""
    step: int
    token: int
    text: str
    log_probability: float
    """Log-probability of the token, given those before it."""
    total: float
    """Log-probability of the whole hypothesis."""
    score: float
    """total / length^α: what finished hypotheses are ranked by."""
    fate: Fate
    """Kept for the next step, pruned, or ended with the end token."""
    won: bool = False
    """Whether it is on the path of the best hypothesis."""


@dataclass(frozen=True)
class BeamTree:
    """A beam search as a tree: nodes in the order of the steps, best first within a step."""

    nodes: tuple[BeamNode, ...]
    beam: int
    length_penalty: float
    answer: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def beam_tree(
    trained: TrainedModel, text: str, *, beam: int = 4, length_penalty: float = 1.0, max_length: int | None = None,
    interventions: Sequence[Intervention] | None = None,
) -> BeamTree:  # fmt: skip
    """Search for the answer to a text as `translate` or `generate` does, and keep every candidate of every step."""
    require_positive(beam=beam)
    if not isinstance(trained, Translator | Generator):
        raise UsageError(f"{trained.name} is {trained.kind}, which does not search for a text")
    edits = trained.edits(as_interventions(interventions), text)
    config = DecodingConfig(beam=beam, length_penalty=length_penalty, max_length=max_length, engine="torch")
    steps: list[BeamStep] = []
    settings = trained.backends.settings(config, default_beam=beam, edits=edits)
    ids = [token for token in trained.input_row(text).ids if token != END]
    request = SearchRequest([ids], replace(settings, trace=steps.append))
    backend = TorchBackend(trained.model)
    ((best, *_),) = backend.translate(request) if isinstance(trained, Translator) else backend.generate(request)
    tokenizer = trained.tokenizers[-1]
    greedy = beam == 1
    nodes = _greedy_nodes(best, tokenizer, length_penalty) if greedy else _nodes(steps, best, tokenizer, length_penalty)
    return BeamTree(tuple(nodes), beam, length_penalty, tokenizer.decode([best.tokens])[0])


def _greedy_nodes(best: Hypothesis, tokenizer: Tokenizer, length_penalty: float) -> list[BeamNode]:
    """A greedy search is a tree of one path."""
    tokens = [*best.tokens, END] if best.ended else best.tokens
    pieces, nodes, total = tokenizer.pieces(tokens), list[BeamNode](), 0.0
    for step, (token, piece, value) in enumerate(zip(tokens, pieces, best.token_log_probabilities, strict=True)):
        total += value
        score, fate = total / (step + 1) ** length_penalty, "ended" if token == END else "kept"
        nodes.append(BeamNode(step - 1 if step else None, step, token, piece, value, total, score, fate, True))  # type: ignore[arg-type]
    return nodes


def _nodes(steps: Sequence[BeamStep], best: Hypothesis, tokenizer: Tokenizer, length_penalty: float) -> list[BeamNode]:
    nodes: list[BeamNode] = []
    hypotheses: list[int | None] = [None]  # the node of each hypothesis that is extended next
    for step, (candidates, ended, continuing) in enumerate(steps):
        extended = list(zip(continuing.beams[0].tolist(), continuing.tokens[0].tolist(), strict=True))
        nodes_of: dict[tuple[int, int], int] = {}
        rows = zip(*(part[0].tolist() for part in candidates), ended[0].tolist(), strict=True)
        pieces = tokenizer.pieces(candidates.tokens[0].tolist())
        for (total, beam, token, value, ends), piece in zip(rows, pieces, strict=True):
            if total == float("-inf"):
                continue
            fate: Fate = "ended" if ends else "kept" if (beam, token) in extended else "pruned"
            nodes_of[beam, token] = len(nodes)
            score = total / (step + 1) ** length_penalty
            nodes.append(BeamNode(hypotheses[beam], step, token, piece, value, total, score, fate))
        hypotheses = [nodes_of.get(key) for key in extended]
    return _with_winner(nodes, [*best.tokens, END] if best.ended else best.tokens)


def _with_winner(nodes: list[BeamNode], tokens: Sequence[int]) -> list[BeamNode]:
    """Mark the path of the best hypothesis."""
    parent: int | None = None
    for step, token in enumerate(tokens):
        path = next(
            (i for i, node in enumerate(nodes) if (node.parent, node.step, node.token) == (parent, step, token)), None
        )
        if path is None:
            break
        nodes[path] = replace(nodes[path], won=True)
        parent = path
    return nodes

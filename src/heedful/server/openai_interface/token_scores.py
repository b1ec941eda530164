"""Log-probabilities of the tokens of a prompt and its continuation, with the most probable tokens at each position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from heedful.generation.backends.torch_backend import max_context
from heedful.generation.streaming import text_widths
from heedful.inference.generator import Generator
from heedful.inspection.text_pass import next_token_pass, run_passes
from heedful.text.special_tokens import END, NEVER_GENERATED
from heedful.text.token_rows import generated_row
from heedful.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenScore:
    """A token with its log-probability, given all before it; None for the first token of a document."""

    text: str
    log_probability: float | None
    top: dict[str, float]
    start: int
    """Characters of the prompt and its continuation before it."""


@torch.inference_mode()
def score_continuation(
    generator: Generator, prompt: str, tokens: Sequence[int], top: int, *, echo: bool
) -> list[TokenScore]:
    """Score the tokens of a continuation in one pass, after those of its prompt if `echo`.

    Of a text that is longer than the model's context, the last tokens are scored.
    """
    tokenizer = generator.tokenizer
    prefix = tokenizer.encode([prompt])[0]
    row = [*(prefix or [END]), *tokens]
    limit = max_context(generator.model) or len(row)
    start = max(0, len(row) - limit)
    text_pass = next_token_pass(generated_row(row[start:], tokenizer), 1)
    rows: Sequence[torch.Tensor] = []
    if text_pass.outputs:
        logits = run_passes(generator.model, [text_pass])[0].float()
        logits[:, : len(NEVER_GENERATED)] = -torch.inf  # as in decoding
        rows = list(logits.log_softmax(-1))
    starts, read = token_starts(prompt, tokens, tokenizer), start + 1
    scores = [TokenScore(piece, None, {}, at) for piece, at in zip(tokenizer.pieces(row[:read]), starts, strict=False)]
    for output, row_scores, at in zip(text_pass.outputs, rows, starts[read:], strict=True):
        best = row_scores.topk(min(top, len(tokenizer))) if top else None
        pairs = zip(tokenizer.pieces(best.indices.tolist()), best.values.tolist(), strict=True) if best else ()
        piece = tokenizer.pieces([output.label])[0]
        scores.append(TokenScore(piece, float(row_scores[output.label]), dict(pairs), at))
    continuation = len(row) - len(tokens)
    return scores[0 if echo and prefix else continuation :]


def token_starts(prompt: str, tokens: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Where each token of a prompt and its continuation begins in the text; END, in the place of no prompt, at 0."""
    starts = [span.start for span in tokenizer.spans(prompt)] or [0]
    widths = text_widths(tokens, tokenizer, context=prompt)
    return starts + [len(prompt) + sum(widths[:index]) for index in range(len(widths))]


def logprobs_json(scores: Sequence[TokenScore], end: int) -> dict[str, Any]:
    """OpenAI's `logprobs` of the tokens that begin before the end of the text; a stop string cut off the others."""
    kept = [score for score in scores if score.start < end]
    return {
        "tokens": [score.text for score in kept],
        "token_logprobs": [score.log_probability for score in kept],
        "top_logprobs": [score.top or None for score in kept],
        "text_offset": [score.start for score in kept],
    }

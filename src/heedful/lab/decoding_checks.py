"""Check that several kinds of decoding over a KV cache or hidden state equal one pass over the text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from heedful.lab.model_probe import ModelProbe


def decoding_difference(probe: ModelProbe) -> tuple[float, str]:
    """The largest relative difference from one pass, and the kind of decoding in which it occurs."""
    errors = {name: difference(probe) for name, difference in DECODING.items()}
    worst = max(errors, key=lambda name: errors[name])
    return errors[worst], worst


def start(probe: ModelProbe, *, capacity: int = 0) -> object:
    """A decoding state of the probe's texts."""
    return probe.model.start(probe.source if probe.is_pair else len(probe.text), capacity=capacity)


def whole(probe: ModelProbe, tokens: Tensor, source: Tensor | None = None) -> Tensor:
    """The logits of one pass over texts, with their sources."""
    return probe.logits(tokens, probe.source if source is None else source)


def token_by_token(probe: ModelProbe) -> float:
    """Decode two batches alternately, so that state stored in the model would leak from one to the other."""
    texts = probe.text, probe.text.flip(1)
    states = start(probe), start(probe, capacity=2)
    steps: tuple[list[Tensor], list[Tensor]] = ([], [])
    for number in range(probe.tokens):
        for text, state, logits in zip(texts, states, steps, strict=True):
            logits.append(probe.model.extend(text[:, number : number + 1], state))
    return max(
        probe.difference(whole(probe, text), torch.cat(logits, 1)) for text, logits in zip(texts, steps, strict=True)
    )


def in_pieces(probe: ModelProbe) -> float:
    """Decode a prompt at once, then chunks of several tokens; only the last logits of the last chunk are computed."""
    state, expected = start(probe), whole(probe, probe.text)
    cuts = sorted({0, probe.tokens // 2, probe.tokens // 2 + 1, probe.tokens})
    pieces = []
    for first, end in pairwise(cuts):
        piece = probe.model.extend(probe.text[:, first:end], state, last=end == probe.tokens)
        pieces.append((piece, expected[:, end - piece.shape[1] : end]))
    return max(probe.difference(wanted, piece) for piece, wanted in pieces)


def in_beams(probe: ModelProbe) -> float:
    """Decode two beams per text, which continue differently and are swapped."""
    half, rows = max(1, probe.tokens // 2), len(probe.text)
    state = start(probe)
    probe.model.extend(probe.text[:, :half], state)
    state.reorder(torch.arange(rows, device=probe.text.device).repeat_interleave(2), 2)  # type: ignore[attr-defined]
    beams = probe.text.repeat_interleave(2, 0)
    beams[1::2, half:] = beams[1::2, half:].flip(1)
    swapped = torch.arange(2 * rows, device=beams.device).view(rows, 2).flip(1).flatten()
    logits = []
    for number in range(half, probe.tokens):
        logits.append(probe.model.extend(beams[:, number : number + 1], state))
        state.reorder(swapped, 2)  # type: ignore[attr-defined]
        beams, logits = beams[swapped], [rows[swapped] for rows in logits]
    source = probe.source.repeat_interleave(2, 0)
    return probe.difference(whole(probe, beams, source)[:, half:], torch.cat(logits, 1)) if logits else 0.0


def with_prompts_of_several_lengths(probe: ModelProbe) -> float:
    """Decode padded prompts of several lengths in one batch, each continued with its own next token."""
    if probe.tokens < 4:
        return 0.0
    lengths = torch.tensor([probe.tokens - 1, probe.tokens - 3, probe.tokens // 2], device=probe.text.device)
    rows, state = torch.arange(len(lengths), device=probe.text.device), start(probe)
    expected = whole(probe, probe.text)
    prompts = probe.model.extend(probe.text[:, :-1], state, lengths)
    following = probe.model.extend(probe.text[rows, lengths][:, None], state, torch.ones_like(lengths))
    errors = [probe.difference(expected[rows, lengths], following[:, 0])]
    for row, length in enumerate(lengths.tolist()):
        errors.append(probe.difference(expected[row, :length], prompts[row, :length]))
    return max(errors)


DECODING: dict[str, Callable[[ModelProbe], float]] = {
    "token by token": token_by_token,
    "in pieces": in_pieces,
    "in beams": in_beams,
    "with prompts of several lengths": with_prompts_of_several_lengths,
}

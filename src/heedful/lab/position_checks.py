"""Check whether a model encodes token order: its effect on the states, and on every self-attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from heedful.lab.model_probe import ROWS, TOKENS, ModelProbe, relative_difference
from heedful.layers.embedding import embedding_lookup
from heedful.layers.scores import WITHOUT_CONTENT
from heedful.layers.taps import record, tap_names
from heedful.models.encoder import Encoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.recurrent import RecurrentEncoderDecoder

Encode = Callable[[Tensor], Tensor]


@torch.inference_mode()
def order_effect(model: Any, tokens: Tensor) -> float:
    """Permutation-equivariance error: how much states change with the order of the tokens, relative to their size.

    max |f(P X) − P f(X)| / |f(X)|, for an encoder or the encoder of a pair        A7
    The last token of a decoder stays last, and its state is compared.
    """
    if isinstance(model, Encoder):
        encode: Encode = model.states
    elif isinstance(model, EncoderDecoder):
        encode = lambda tokens: model.encode(tokens).states  # noqa: E731
    elif isinstance(model, RecurrentEncoderDecoder):
        encode = lambda tokens: model.encoder(embedding_lookup(model.table, tokens))[0][:, -1:]  # noqa: E731
    else:
        encode = lambda tokens: model.states(tokens)[:, -1:]  # noqa: E731
    last = tokens.shape[1] - 1
    order = [*reversed(range(last)), last]  # the last token stays
    straight, permuted = encode(tokens), encode(tokens[:, order])
    straight = straight[:, order] if straight.shape[1] > 1 else straight
    return float(relative_difference(straight, permuted).max())


def equivariance_error(model: Any) -> float:
    """`order_effect` on random tokens."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(6, model.config.vocabulary, (ROWS, TOKENS), generator=generator)
    return order_effect(model.eval(), tokens.to(model.device))


def attention_without_positions(probe: ModelProbe) -> list[str]:
    """The self-attentions without the configured positions, which a causal mask alone could hide.

    In a text of one repeated token, keys differ only by their positions: attention that is uniform over the allowed
    keys has no position information.
    """
    config = probe.config
    if not probe.is_transformer or config.positions == "none":
        return []
    if config.score in WITHOUT_CONTENT and config.positions != "alibi":
        return []
    names = [name for name in tap_names(probe.model) if name.endswith(".attention.weights")]
    if config.positions in ("sinusoidal", "learned"):  # added to the tokens, not to every attention
        names = list({name.partition(".")[0]: name for name in reversed(names)}.values())
    if not names:
        return []
    with record(probe.model, *names) as recorded:
        same = probe.source[:1, :1].expand(1, probe.tokens)
        probe.model(*((same, probe.target[:1, :1].expand_as(same)) if probe.is_pair else (same,)))
        weights = {name: recorded[name] for name in names}
    return [name.removesuffix(".weights") for name, weight in weights.items() if is_uniform(weight, probe.tolerance)]


def is_uniform(weights: Tensor, tolerance: float) -> bool:
    """Whether every query has the same weight for all its keys; false for a single key, where it cannot be decided."""
    attended = weights != 0
    high, low = weights.masked_fill(~attended, -torch.inf).amax(-1), weights.masked_fill(~attended, torch.inf).amin(-1)
    several = attended.sum(-1) > 1
    if not several.any():
        return False
    return bool(((high - low)[several] <= tolerance * weights.abs().max()).all())

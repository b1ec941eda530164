"""Checks of any model: does order matter, does a later token leak, do padding, the cache or the batch change a result?

They compare a model's outputs with each other and with its configuration, so they need no data: tokens are drawn at
random. Models imported from other libraries can be checked too. The checks run in float64, to tell a small leak, such
as a soft mask's, from rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import UsageError
from heedful.inference.trained_model import TrainedModel
from heedful.lab.decoding_checks import decoding_difference
from heedful.lab.model_probe import Check, ModelProbe, relative_difference
from heedful.lab.position_checks import attention_without_positions, order_effect
from heedful.lab.skip_checks import all_skips, changed_skips, tokens_reach_the_end
from heedful.models.word_vectors import WordVectors

LARGEST_IN_DOUBLE = 500_000_000
"""Maximum number of weights for float64; a larger model is checked in its own precision."""


def check_model(model: TrainedModel | torch.nn.Module, *, seed: int = 1) -> list[Check]:
    """Check order, look-ahead, padding, cache, batch and skip-connections of a model.

    Other threads must not use the model during the checks.
    """
    module: Any = model.model if isinstance(model, TrainedModel) else model
    if isinstance(module, WordVectors) or not hasattr(module, "states"):
        raise UsageError(f"{type(module).__name__} has no states to check; checks are for encoders and decoders")
    training = module.training
    module.eval()
    try:
        with in_double_precision(module), torch.inference_mode():
            probe = ModelProbe(module, seed)
            return [run_check(name, check, probe) for name, check in CHECKS.items()]
    finally:
        module.train(training)


@contextmanager
def in_double_precision(module: nn.Module) -> Iterator[None]:
    """Convert weights to float64 inside the block and restore them after it; no change on MPS or for large models."""
    tensors = [tensor for tensor in chain(module.parameters(), module.buffers()) if tensor.is_floating_point()]
    numbers = sum(tensor.numel() for tensor in tensors)
    if numbers > LARGEST_IN_DOUBLE or any(tensor.device.type == "mps" for tensor in tensors):
        yield
        return
    before = [tensor.data for tensor in tensors]
    for tensor in tensors:
        tensor.data = tensor.data.double()
    try:
        yield
    finally:
        for tensor, data in zip(tensors, before, strict=True):
            tensor.data = data


def check_order(probe: ModelProbe) -> Check:
    """Permuted tokens must change a model that encodes order, and must not change one that cannot."""
    if probe.tokens < 3 or getattr(probe.config, "window", None) == 1:
        return Check("order", "not applicable", "no token attends to another one, or texts have fewer than three")
    error = order_effect(probe.model, probe.source)
    expected, moves = probe.encodes_order, error > probe.tolerance
    kind = "encodes order" if expected else "has neither positions nor a causal mask"
    effect = "changes its states" if moves else "permutes its states and changes nothing else"
    if blind := attention_without_positions(probe):
        detail = f"positions {probe.config.positions} do not reach {', '.join(blind)}"
        return probe.result("order", passed=False, detail=detail, difference=error)
    detail = f"the model {kind}; another order of the tokens {effect}"
    return probe.result("order", passed=moves == expected, detail=detail, difference=error)


def check_look_ahead(probe: ModelProbe) -> Check:
    """No token of a causal text may change any output before it."""
    if probe.is_encoder and not probe.encoder_causal:
        return Check("look-ahead", "not applicable", "an encoder reads the whole text")
    if probe.encoder_causal:
        error = leak(probe.encoder_states, probe.source)
        if error > probe.tolerance or probe.is_encoder:
            detail = f"encoder_causal is true; {leak_text(error > probe.tolerance, 'states')}"
            return probe.result("look-ahead", passed=error <= probe.tolerance, detail=detail, difference=error)
    error = leak(probe.logits, probe.text)
    leaks = error > probe.tolerance
    if not probe.decoder_causal:
        detail = "decoder_causal is false: predictions see the tokens that they predict"
        return probe.result("look-ahead", passed=leaks, detail=detail, difference=error)
    return probe.result("look-ahead", passed=not leaks, detail=leak_text(leaks, "predictions"), difference=error)


def leak_text(leaks: bool, outputs: str) -> str:
    """The result of a look-ahead check as a sentence."""
    if leaks:
        return f"a later token changes earlier {outputs}"
    return f"no {outputs.removesuffix('s')} depends on a later token"


def leak(outputs: Callable[[Tensor], Tensor], tokens: Tensor) -> float:
    """The largest relative change of outputs before token t when token t is replaced, over all t.

    All texts are one batch of one shape, so that a model without a leak changes by exactly 0.
    """
    changed = tokens[:1].repeat(tokens.shape[1], 1)
    rows = torch.arange(1, tokens.shape[1], device=tokens.device)
    replacements = torch.where(tokens[0, 1:] == tokens.max(), tokens.min(), tokens[0, 1:] + 1)
    changed[rows, rows] = replacements  # row 0 is the text itself
    result = outputs(changed)
    return float(relative_difference(result[:1], result).flatten(2).amax(2).tril(-1).max())


def check_padding(probe: ModelProbe) -> Check:
    """Padding after a text must not change its outputs: texts of several lengths in a batch, and each alone."""
    error = probe.padding_difference()
    same = error <= probe.tolerance
    detail = f"padding up to {probe.padded_to} tokens changes {'nothing' if same else 'outputs'}"
    return probe.result("padding", passed=same, detail=detail, difference=error)


def check_cache(probe: ModelProbe) -> Check:
    """Every kind of decoding over the KV cache or hidden state must equal one pass over the text."""
    if probe.is_encoder:
        return Check("cache", "not applicable", "an encoder has no cache")
    if not probe.decoder_causal:
        return Check("cache", "not applicable", "without a causal mask earlier states change with every token")
    error, kind = decoding_difference(probe)
    same = error <= probe.tolerance
    detail = "token by token, in pieces and in beams equals one pass" if same else f"{kind} differs from one pass"
    return probe.result("cache", passed=same, detail=detail, difference=error)


def check_batch(probe: ModelProbe) -> Check:
    """Each text of a batch must have the same outputs as alone."""
    together = probe.outputs(probe.source)
    alone = torch.cat([probe.outputs(probe.source[row : row + 1], row) for row in range(len(probe.source))])
    error = probe.difference(together, alone)
    same = error <= probe.tolerance
    detail = f"other texts of a batch change {'nothing' if same else 'outputs'}"
    return probe.result("batch", passed=same, detail=detail, difference=error)


def check_skips(probe: ModelProbe) -> Check:
    """Every skip-connection must pass its input on unchanged, so that tokens reach the last block."""
    name = "skip-connections"
    if not probe.is_transformer or probe.tokens < 2:
        kind = "texts have a single token" if probe.is_transformer else "a recurrent network has none"
        return Check(name, "not applicable", kind)
    if changed := changed_skips(probe):
        return probe.result(name, passed=False, detail=f"not as configured: {', '.join(changed)}", difference=None)
    if not all_skips(probe):
        return Check(name, "not applicable", "the configuration leaves skip-connections out")
    reach = tokens_reach_the_end(probe)
    detail = f"skip-connections {'carry' if reach else 'do not carry'} the tokens past all sub-layers"
    return probe.result(name, passed=reach, detail=detail, difference=None)


def run_check(name: str, check: Callable[[ModelProbe], Check], probe: ModelProbe) -> Check:
    """The result of a check; a model that raises an error fails it."""
    try:
        return check(probe)
    except (RuntimeError, IndexError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        return Check(name, "failed", f"the model stops with {type(error).__name__}: {reason}")


CHECKS: dict[str, Callable[[ModelProbe], Check]] = {
    "order": check_order,
    "look-ahead": check_look_ahead,
    "padding": check_padding,
    "cache": check_cache,
    "batch": check_batch,
    "skip-connections": check_skips,
}

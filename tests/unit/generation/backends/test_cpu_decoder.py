"""The flat step is the modules' step: the same logits and the same state, in every design it says it can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import heedful
from heedful import UsageError
from heedful.generation.backends import cpu_linear as packed
from heedful.generation.backends.cpu_decoder import CpuDecoder, can_be_flat, flattened, lasting
from heedful.generation.backends.cpu_linear import CpuLinear, has_packed_linear
from heedful.generation.continuation import generate_ids, generate_tokens
from heedful.generation.decoding_config import DecodingConfig
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.sequence_to_sequence import translate_ids

DESIGNS: dict[str, dict[str, Any]] = {
    "the paper's": {"norm_order": "post", "positions": "sinusoidal", "position_layout": "interleaved"},
    "pre-norm, rotary, gated": {"norm_order": "pre", "positions": "rotary", "gated": True, "activation": "silu"},
    "rms, grouped heads": {"norm": "rms", "key_value_heads": 2, "norm_order": "pre", "bias": False},
    "learned, gelu": {"positions": "learned", "max_length": 24, "activation": "gelu_tanh", "embedding_norm": True},
    "no positions, odd widths": {"positions": "none", "head_width": 6, "value_width": 10, "score": "dot"},
    "concatenated": {"position_combine": "concatenate", "positions": "sinusoidal", "tie_output": False},
    "plain tables": {"embedding_scale": False, "output_bias": True, "tie_output": False, "final_norm": True},
}
FAMILIES = ("encoder_decoder", "decoder")


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "SOON", 1)


def build(family: str, **design: Any) -> Any:
    torch.manual_seed(0)
    preset = "paper-base" if family == "encoder_decoder" else "gpt2"
    size = {"vocabulary": 40, "width": 32, "heads": 4, "layers": 2}
    model = heedful.build(preset, **{**size, **design}).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return model


def begun(model: Any, rows: int) -> Any:
    """A state of rows that have read something; sources are of different lengths."""
    if model.config.family == "decoder":
        return model.start(rows)
    source = torch.randint(6, 40, (rows, 7), generator=torch.Generator().manual_seed(1))
    return model.start(source, torch.tensor([7, 3, 5, 1, 7][:rows]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("rows", [1, 3])
@torch.inference_mode()
def test_logits_and_state_are_the_modules(family: str, design: str, rows: int, packing: None) -> None:
    model = build(family, **DESIGNS[design])
    flat = lasting(model)
    assert isinstance(flat, CpuDecoder)
    ours, theirs = begun(model, rows), begun(model, rows)
    tokens = torch.randint(6, 40, (rows, 12), generator=torch.Generator().manual_seed(2))
    for first, last in ((0, 1), (1, 5), *((n, n + 1) for n in range(5, 12))):  # one, several, then one at a time
        new = tokens[:, first:last]
        assert torch.allclose(flat.extend(new, ours, last=True), model.extend(new, theirs, last=True), atol=1e-5)
    assert torch.equal(ours.lengths, theirs.lengths)
    assert ours.end == theirs.end == 12
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        assert torch.allclose(mine.keys[:, :, :12], other.keys[:, :, :12], atol=1e-5)
    assert (flat.output.packed is not None) == (rows > 1 and has_packed_linear())
    assert (flat.output.transposed is not None) == (rows == 1)


@torch.inference_mode()
def test_beams_that_share_a_source_read_it_together() -> None:
    model = build("encoder_decoder")
    flat, ours, theirs = CpuDecoder(model), begun(model, 3), begun(model, 3)
    for read, state in ((flat, ours), (model, theirs)):
        read.extend(torch.full((3, 1), 2), state)
        state.reorder(torch.tensor([0, 0, 2, 2]), 2)
    tokens = torch.tensor([[7], [8], [9], [10]])
    assert torch.allclose(flat.extend(tokens, ours), model.extend(tokens, theirs), atol=1e-5)


def test_what_it_was_not_made_for_goes_through_the_modules(make_model: Callable[..., Any]) -> None:
    for design in ({"positions": "alibi"}, {"window": 3}, {"score": "additive"}, {"softmax": False}, {"skip": False}):
        assert not can_be_flat(build("decoder", **design)), design
    model = build("decoder")
    assert not can_be_flat(model.train())
    model.eval()
    hook = model.decoder.blocks[1].register_forward_hook(lambda *_: None)
    assert not can_be_flat(model)
    hook.remove()
    assert can_be_flat(model)
    model.extend = model.extend  # somebody's own
    assert not can_be_flat(model)
    del model.extend
    model.decoder.blocks[0].feed_forward.inward = nn.Sequential(model.decoder.blocks[0].feed_forward.inward)
    assert flattened(model) is model
    recurrent = make_model("recurrent-translator")
    assert flattened(recurrent) is recurrent


@torch.inference_mode()
def test_somebody_listening_is_served_from_the_next_token_on() -> None:
    model = build("encoder_decoder")
    flat, state = CpuDecoder(model), begun(model, 2)
    tokens = torch.full((2, 1), 7)
    flat.extend(tokens, state)
    with heedful.record(model, "decoder.*.cross.weights") as seen:
        flat.extend(tokens, state)
    assert set(seen) == {"decoder.0.cross.weights", "decoder.1.cross.weights"}


@torch.inference_mode()
def test_mistakes_are_named_as_ever() -> None:
    flat = CpuDecoder(build("decoder", positions="learned", max_length=2))
    state = flat.start(1)
    with pytest.raises(UsageError, match="token id 40 is outside"):
        flat.extend(torch.tensor([[40]]), state)
    flat.extend(torch.tensor([[7]]), state)
    flat.extend(torch.tensor([[7]]), state)
    with pytest.raises(UsageError, match="longer than the learned position table of 2"):
        flat.extend(torch.tensor([[7]]), state)


@torch.inference_mode()
def test_rows_of_different_lengths_go_through_the_modules() -> None:
    model = build("decoder")
    flat, ours, theirs = CpuDecoder(model), model.start(2), model.start(2)
    for read, state in ((flat, ours), (model, theirs)):
        read.extend(torch.tensor([[7, 8], [9, 0]]), state, torch.tensor([2, 1]))
    tokens = torch.tensor([[10], [11]])
    assert torch.allclose(flat.extend(tokens, ours), model.extend(tokens, theirs), atol=1e-5)


@pytest.mark.parametrize("beam", [1, 3])
def test_texts_are_those_the_modules_write(beam: int, monkeypatch: pytest.MonkeyPatch, packing: None) -> None:
    translator, writer = build("encoder_decoder"), build("decoder", max_length=16)
    sources = torch.randint(6, 40, (5, 9), generator=torch.Generator().manual_seed(3)).tolist()
    sources = [source[: 3 + i] for i, source in enumerate(sources)]

    def write() -> list[list[int]]:
        found = translate_ids(translator, sources, beam=beam)
        found += generate_ids(writer, sources, limit=20, beam=beam)
        told = list(generate_tokens(writer, sources[0], limit=20, draw=SamplingConfig(seed=3)))
        return [*(texts[0].tokens for texts in found), told]

    ours = write()
    for module in ("translate", "generate"):
        monkeypatch.setattr(f"heedful.generation.{module}.flattened", lambda model: model)
    assert ours == write()


def test_changed_weights_are_seen_by_the_next_request(packing: None) -> None:
    model = build("encoder_decoder")
    sources = [[7, 8, 9], [10, 11]]
    before = translate_ids(model, sources, beam=2)
    with torch.no_grad():
        model.table.weight.data[20:] = 0.0  # behind the back of any counter
    after, expected = translate_ids(model, sources, beam=2), translate_ids(model, sources, beam=2, exact=True)
    assert [texts[0].tokens for texts in after] == [texts[0].tokens for texts in expected]
    assert [texts[0].tokens for texts in after] != [texts[0].tokens for texts in before]


def test_what_is_kept_is_given_again_until_the_model_changes(packing: None) -> None:
    model = build("encoder_decoder")
    kept = lasting(model)
    assert lasting(model, kept) is kept
    translate_ids(kept, [[7, 8, 9]], beam=1)
    assert kept.output.turned is not None
    assert lasting(model, kept) is kept
    with torch.no_grad():
        model.table.weight[20:] = 0.0
    assert lasting(model, kept) is not kept
    kept = lasting(model)
    model.decoder.blocks[0].residual[0].norm.weight = nn.Parameter(torch.zeros(32))
    assert lasting(model, kept) is not kept
    assert lasting(model.train(), kept) is model


def test_a_single_row_of_a_large_model_is_served_like_several(packing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("encoder_decoder")
    plain = translate_ids(lasting(model), [[7, 8, 9]], beam=1)
    monkeypatch.setattr(packed, "LARGE", 1)
    large = lasting(model)
    assert [text.tokens for (text,) in translate_ids(large, [[7, 8, 9]], beam=1)] == [text.tokens for (text,) in plain]
    assert (large.output.packed is not None) == has_packed_linear()
    assert (large.output.turned is None) == has_packed_linear()


def test_a_loaded_model_keeps_its_step_and_exact_requests_go_through_the_modules(
    make_trained: Callable[..., Any],
) -> None:
    trained = make_trained("laptop-translator")
    assert trained.engines.own(DecodingConfig(exact=True)) is trained.model
    first = trained.engines.own(DecodingConfig())
    assert isinstance(first, CpuDecoder)
    assert trained.engines.own(DecodingConfig()) is first
    ways: list[dict[str, Any]] = [{}, {"exact": True}]
    plain, exact = (list(trained.translate(["3 May 1999", "12.4.2001"], **way)) for way in ways)
    assert plain == exact


@torch.inference_mode()
def test_a_packed_product_is_the_product() -> None:
    if not has_packed_linear():
        pytest.skip("this build of torch has none")
    for bias in (None, torch.randn(20)):
        product, x = CpuLinear(torch.randn(20, 12), bias), torch.randn(5, 12)
        plain = product(x)
        product.transpose()
        assert torch.allclose(product(x[:1]), plain[:1], atol=1e-5)
        product.pack()
        assert product.transposed is None
        assert torch.allclose(product(x), plain, atol=1e-5)

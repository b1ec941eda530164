"""The CPU backend: its decode step, texts and errors equal the modules' for every supported configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import heedful
from heedful import UsageError
from heedful.generation.backends import cpu_linear
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.cpu_backend import CpuBackend
from heedful.generation.backends.cpu_decoder import CpuDecoder
from heedful.generation.backends.cpu_linear import CpuLinear, has_packed_linear
from heedful.generation.backends.select import training_backend
from heedful.generation.backends.thread_pools import ROWS_PER_THREAD, WIDE_MODEL
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.search.settings import SearchSettings

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
ANY = SearchRequest()


@pytest.fixture
def pack_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_linear, "PACK_AFTER_STEPS", 1)


def build(family: str, **design: Any) -> Any:
    torch.manual_seed(0)
    preset = "paper-base" if family == "encoder_decoder" else "gpt2"
    size = {"vocabulary": 40, "width": 32, "heads": 4, "layers": 2}
    model = heedful.build(preset, **{**size, **design}).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return model


def start(model: Any, rows: int) -> Any:
    """A KV cache of rows whose sources, if any, have different lengths."""
    if model.config.family == "decoder":
        return model.start(rows)
    source = torch.randint(6, 40, (rows, 7), generator=torch.Generator().manual_seed(1))
    return model.start(source, torch.tensor([7, 3, 5, 1, 7][:rows]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("rows", [1, 3])
@torch.inference_mode()
def test_logits_and_kv_cache_equal_the_modules(family: str, design: str, rows: int, pack_at_once: None) -> None:
    model = build(family, **DESIGNS[design])
    decoder, cache, expected = CpuDecoder(model, keep_weights=True), start(model, rows), start(model, rows)
    tokens = torch.randint(6, 40, (rows, 12), generator=torch.Generator().manual_seed(2))
    for first, last in (
        (0, 1),
        (1, 5),
        *((n, n + 1) for n in range(5, 12)),
    ):  # one token, several tokens, then one per step
        new = tokens[:, first:last]
        logits, expected_logits = decoder.extend(new, cache, last=True), model.extend(new, expected, last=True)
        assert torch.allclose(logits, expected_logits, atol=1e-5)
    assert torch.equal(cache.lengths, expected.lengths)
    assert cache.longest == expected.longest == 12
    for layer, expected_layer in zip(cache.layers, expected.layers, strict=True):
        assert torch.allclose(layer.keys[:, :, :12], expected_layer.keys[:, :, :12], atol=1e-5)
    assert (decoder.output.packed is not None) == (rows > 1 and has_packed_linear())
    assert (decoder.output.transposed is not None) == (rows == 1)


@torch.inference_mode()
def test_beams_share_their_source() -> None:
    model = build("encoder_decoder")
    decoder, cache, expected = CpuDecoder(model), start(model, 3), start(model, 3)
    for decoding, state in ((decoder, cache), (model, expected)):
        decoding.extend(torch.full((3, 1), 2), state)
        state.reorder(torch.tensor([0, 0, 2, 2]), 2)
    tokens = torch.tensor([[7], [8], [9], [10]])
    assert torch.allclose(decoder.extend(tokens, cache), model.extend(tokens, expected), atol=1e-5)


def test_unsupported_models_are_named(make_model: Callable[..., Any]) -> None:
    for design in ({"positions": "alibi"}, {"window": 3}, {"score": "additive"}, {"softmax": False}, {"skip": False}):
        assert CpuBackend(build("decoder", **design)).unsupported(ANY), design
    model = build("decoder")
    backend = CpuBackend(model)
    model.train()
    assert backend.unsupported(ANY) == "the model is in training mode"
    model.eval()
    hook = model.decoder.blocks[1].register_forward_hook(lambda *_: None)
    assert "forward hook" in str(backend.unsupported(ANY))
    hook.remove()
    assert backend.unsupported(ANY) is None
    assert backend.unsupported(SearchRequest(settings=SearchSettings(exact=True)))
    model.extend = model.extend  # replaced by a user
    assert backend.unsupported(ANY)
    del model.extend
    model.decoder.blocks[0].feed_forward.inward = nn.Sequential(model.decoder.blocks[0].feed_forward.inward)
    assert "Sequential" in str(backend.unsupported(ANY))
    for unsupported in (model, make_model("recurrent-translator")):
        assert type(training_backend(unsupported)) is TorchBackend


@torch.inference_mode()
def test_tap_added_between_steps_is_called() -> None:
    model = build("encoder_decoder")
    decoder, cache = CpuDecoder(model), start(model, 2)
    tokens = torch.full((2, 1), 7)
    decoder.extend(tokens, cache)
    with heedful.record(model, "decoder.*.cross.weights") as recording:
        decoder.extend(tokens, cache)
    assert set(recording) == {"decoder.0.cross.weights", "decoder.1.cross.weights"}


@torch.inference_mode()
def test_errors_equal_the_models_errors() -> None:
    decoder = CpuDecoder(build("decoder", positions="learned", max_length=2))
    cache = decoder.start(1)
    with pytest.raises(UsageError, match="token id 40 is outside"):
        decoder.extend(torch.tensor([[40]]), cache)
    decoder.extend(torch.tensor([[7]]), cache)
    decoder.extend(torch.tensor([[7]]), cache)
    with pytest.raises(UsageError, match="longer than the learned position table of 2"):
        decoder.extend(torch.tensor([[7]]), cache)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned"])
@torch.inference_mode()
def test_rows_of_different_lengths_and_caches_decode_together(positions: str) -> None:
    model = build("decoder", positions=positions)
    decoder, (first, second, *expected) = CpuDecoder(model), [model.start(2) for _ in range(4)]
    for state, lengths in zip((first, second, *expected), ([2, 1], [2, 2]) * 2, strict=True):
        model.extend(torch.tensor([[7, 8], [9, 0]]), state, torch.tensor(lengths))
    for tokens in torch.tensor([[10, 11, 12, 13], [14, 15, 16, 17]]):
        together = decoder.decode_one_token(tokens, first, second)
        pairs = zip(tokens.view(2, 2, 1), expected, strict=True)
        alone = torch.cat([model.extend(rows, cache)[:, 0] for rows, cache in pairs])
        assert torch.allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("beam", [1, 3])
def test_texts_equal_the_torch_backends(beam: int, pack_at_once: None) -> None:
    translator, writer = build("encoder_decoder"), build("decoder", max_length=16)
    sources = torch.randint(6, 40, (5, 9), generator=torch.Generator().manual_seed(3)).tolist()
    sources = [source[: 3 + i] for i, source in enumerate(sources)]

    def texts(backend: type[TorchBackend]) -> list[list[int]]:
        results = backend(translator).translate(SearchRequest(sources, SearchSettings(beam=beam)))
        results += backend(writer).generate(SearchRequest(sources, SearchSettings(beam=beam, max_length=20)))
        settings = SearchSettings(sampling=SamplingConfig(seed=3), max_length=20)
        sampled = backend(writer).stream(SearchRequest(sources[:1], settings))
        return [*(hypotheses[0].tokens for hypotheses in results), list(sampled)]

    assert texts(CpuBackend) == texts(TorchBackend)


def translated(backend: TorchBackend, sources: list[list[int]], beam: int) -> list[list[int]]:
    return [hypotheses[0].tokens for hypotheses in backend.translate(SearchRequest(sources, SearchSettings(beam=beam)))]


def test_training_backend_sees_changed_weights(pack_at_once: None) -> None:
    model = build("encoder_decoder")
    sources = [[7, 8, 9], [10, 11]]
    before = translated(training_backend(model), sources, 2)
    with torch.no_grad():
        model.table.weight.data[20:] = 0.0  # not counted by torch's version counter
    after = translated(training_backend(model), sources, 2)
    assert after == translated(TorchBackend(model), sources, 2)
    assert after != before


def test_decoder_is_kept_until_the_weights_change(pack_at_once: None) -> None:
    model = build("encoder_decoder")
    backend = CpuBackend(model)
    decoder = backend.decoding_model()
    assert backend.decoding_model() is decoder
    translated(backend, [[7, 8, 9]], 1)
    assert decoder.output.transposed is not None
    assert backend.decoding_model() is decoder
    with torch.no_grad():
        model.table.weight[20:] = 0.0
    changed = backend.decoding_model()
    assert changed is not decoder
    model.decoder.blocks[0].residual[0].norm.weight = nn.Parameter(torch.zeros(32))
    assert backend.decoding_model() is not changed


def test_large_model_packs_its_weights_for_single_rows(pack_at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("encoder_decoder")
    expected = translated(CpuBackend(model), [[7, 8, 9]], 1)
    monkeypatch.setattr(cpu_linear, "LARGE_MODEL", 1)
    large = CpuBackend(model)
    assert translated(large, [[7, 8, 9]], 1) == expected
    assert (large.decoding_model().output.packed is not None) == has_packed_linear()
    assert (large.decoding_model().output.transposed is None) == has_packed_linear()


def test_only_many_rows_of_wide_models_are_split_over_threads() -> None:
    size: dict[str, Any] = {"vocabulary": 40, "heads": 4, "layers": 1, "feed_forward": 64}
    wide, narrow = (
        heedful.build("laptop-translator", width=width, **size).eval() for width in (WIDE_MODEL, WIDE_MODEL - 64)
    )
    backend, threads = CpuBackend(wide), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert backend.worker_count(2 * ROWS_PER_THREAD, 1) == backend.worker_count(ROWS_PER_THREAD // 2, 4) == 2
        assert backend.worker_count(ROWS_PER_THREAD, 1) == backend.worker_count(1, 100) == 1
        assert CpuBackend(narrow).worker_count(100, 1) == 1
        assert CpuBackend(wide, keep_weights=False).worker_count(100, 1) == 1
    finally:
        torch.set_num_threads(threads)


@torch.inference_mode()
def test_packed_and_transposed_linear_equal_plain() -> None:
    if not has_packed_linear():
        pytest.skip("this build of torch has no packed linear")
    for bias in (None, torch.randn(20)):
        linear, x = CpuLinear(torch.randn(20, 12), bias), torch.randn(5, 12)
        expected = linear(x)
        linear.transpose()
        assert torch.allclose(linear(x[:1]), expected[:1], atol=1e-5)
        linear.pack()
        assert linear.transposed is None
        assert torch.allclose(linear(x), expected, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"positions": "rotary"}, {"norm_order": "pre"}, {"encoder_causal": True}])
@torch.inference_mode()
def test_encoded_sources_equal_the_models(settings: dict[str, Any], pack_at_once: None) -> None:
    model = build("encoder_decoder", **settings)
    decoder, lengths = CpuDecoder(model, keep_weights=True), torch.tensor([5, 3, 1])
    source = torch.randint(6, 40, (3, 5), generator=torch.Generator().manual_seed(1))
    for _ in range(2):  # the second iteration uses packed weights
        state, expected = decoder.start(source, lengths), model.start(source, lengths)
        for layer, expected_layer in zip(state.layers, expected.layers, strict=True):
            for part, expected_part in zip(layer.memory, expected_layer.memory, strict=True):
                for row, length in enumerate(lengths):
                    assert torch.allclose(part[row, :, :length], expected_part[row, :, :length], atol=1e-5)

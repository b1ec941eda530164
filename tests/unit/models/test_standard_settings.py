"""Every setting made for a study: cached decoding, padding, backends, taps and gradients behave as in any model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.cpu_backend import CpuBackend
from heedful.generation.backends.ctranslate2_backend import CTranslate2Backend
from heedful.generation.backends.cuda_graph_backend import CudaGraphBackend
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.search.settings import SearchSettings
from heedful.interop.ctranslate2_export import unsupported_setting
from heedful.interop.huggingface import choose_layout
from heedful.interop.onnx_export import export_onnx
from heedful.models.standard_settings import nonstandard_setting
from heedful.text.special_tokens import END, NEVER_GENERATED, PAD, START

DESIGNS: dict[str, dict[str, Any]] = {
    "uniform score": {"score": "uniform"},
    "score by position": {"score": "position", "max_length": 16},
    "score by distance": {"score": "distance", "max_length": 16, "key_value_heads": 2},
    "scale 1": {"score_scale": 1.0},
    "scale 1/d_k": {"score_scale": "1/d_k", "positions": "rotary"},
    "learned scale": {"score_scale": "learned"},
    "scaled additive": {"score": "additive", "score_scale": 2.0},
    "feed-forward over tokens": {"score": "position", "softmax": False, "head_activation": "relu", "max_length": 16},
    "projections by networks": {"projection": "network"},
    "networks, values only": {"projection": "network", "score": "uniform"},
    "causal encoder": {"encoder_causal": True},
    "decoder without causal mask": {"decoder_causal": False},
    "not itself": {"exclude_self": True},
    "not itself, in a window": {"exclude_self": True, "window": 3, "positions": "alibi"},
    "no norms": {"norm": "none", "norm_order": "pre"},
    "norm bias alone": {"bias": False, "norm_bias": True},
    "attention only": {"feed_forward": 0},
    "attention only, plain skips": {"feed_forward": 0, "norm": "none"},
    "one layer without feed-forward": {"sublayers": [{"part": "*.1.feed_forward", "feed_forward": 0}]},
    "one layer without attention": {"sublayers": [{"part": "*.0.attention", "heads": 0}], "positions": "rotary"},
    "parts of parts": {
        "sublayers": [
            {"part": "*.0", "norm": "none", "heads": 3},
            {"part": "*.1.attention", "skip": False, "heads": 1},
            {"part": "*.1.feed_forward", "feed_forward": 8},
        ]
    },
    "identity activation": {"activation": "identity"},
}
FAMILIES = ("encoder", "decoder", "encoder_decoder")
OTHERS = [("decoder", "causal encoder"), ("encoder", "decoder without causal mask")]
"""Settings of another family."""


def cases(*families: str, without: tuple[str, ...] = ()) -> Any:
    """Every design of these families."""
    pairs = [(family, design) for design in DESIGNS for family in families if design not in without]
    return pytest.mark.parametrize(("family", "design"), [pair for pair in pairs if pair not in OTHERS])


CHEATING = "decoder without causal mask"


def build(family: str, design: str) -> Any:
    torch.manual_seed(0)
    size = {"vocabulary": 40, "width": 32, "heads": 4, "layers": 2, "dropout": 0.0, "tie_output": False}
    model = heedful.build(heedful.TransformerConfig(**{"family": family, **size, **DESIGNS[design]})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return model


def tokens(rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(6, 40, (rows, length), generator=torch.Generator().manual_seed(seed))


def run(model: Any, text: Tensor, lengths: Tensor | None = None) -> Tensor:
    """The model's output for texts that, in a translator, have a fixed target."""
    if model.config.family == "encoder":
        return model(text, lengths)
    return model(text) if model.config.family == "decoder" else model(text, tokens(len(text), 5, 9), lengths)


@cases("decoder", "encoder_decoder", without=(CHEATING,))
@torch.inference_mode()
def test_cached_decoding_equals_uncached(family: str, design: str) -> None:
    model = build(family, design)
    source, target = (tokens(3, 6), torch.tensor([6, 2, 4])), tokens(3, 9, 2)
    expected = model(target) if family == "decoder" else model(source[0], target, source[1])
    cache = model.start(3) if family == "decoder" else model.start(*source)
    logits = [model.extend(target[:, a:b], cache) for a, b in ((0, 1), (1, 4), (4, 5), (5, 9))]
    torch.testing.assert_close(torch.cat(logits, 1), expected, atol=1e-5, rtol=1e-4)


@cases("encoder_decoder", without=(CHEATING,))
@torch.inference_mode()
def test_cached_rows_of_different_lengths_and_beams_equal_uncached(family: str, design: str) -> None:
    model = build(family, design)
    source, lengths, first = tokens(2, 6), torch.tensor([6, 3]), tokens(2, 4, 3)
    cache = model.start(source, lengths)
    model.extend(first, cache, torch.tensor([4, 2]))
    cache.reorder(torch.tensor([0, 0, 1, 1]), 2)
    new = tokens(4, 1, 4)
    logits = model.extend(new, cache)[:, 0]
    for row, (text, length) in enumerate([(0, 4), (0, 4), (1, 2), (1, 2)]):
        target = torch.cat([first[text, :length], new[row]])[None]
        expected = model(source[text : text + 1, : lengths[text]], target)[0, -1]
        torch.testing.assert_close(logits[row], expected, atol=1e-5, rtol=1e-4)


@cases("encoder", "encoder_decoder")
@torch.inference_mode()
def test_padding_does_not_change_a_result(family: str, design: str) -> None:
    model = build(family, design)
    text, lengths = tokens(2, 7), torch.tensor([7, 4])
    together, alone = run(model, text, lengths)[1:], run(model, text[1:, :4])
    if family == "encoder":
        torch.testing.assert_close(together[:, :4], alone, atol=1e-5, rtol=1e-4)
    else:
        states = model.states(tokens(2, 5, 9), model.encode(text, lengths))[1:]
        expected = model.states(tokens(2, 5, 9)[1:], model.encode(text[1:, :4]))
        torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-4)


@cases("decoder", "encoder_decoder")
def test_every_backend_refuses_or_decodes_the_same(family: str, design: str) -> None:
    model = build(family, design)
    request = SearchRequest([[7, 8, 9], [11, 12, 13, 14, 15]], SearchSettings(beam=2, max_length=8))
    assert "not implemented" in str(CudaGraphBackend(model).unsupported(request))

    def decoded(backend: Any) -> list[list[int]]:
        search = backend.generate if family == "decoder" else backend.translate
        return [hypotheses[0].tokens for hypotheses in search(request)]

    expected = decoded(TorchBackend(model))
    for backend in (CpuBackend(model), CTranslate2Backend(model, (), None)):
        if backend.unsupported(request) is None:
            assert decoded(backend) == expected


@cases("encoder_decoder")
def test_export_formats_refuse_nonstandard_settings(family: str, design: str) -> None:
    model = build(family, design)
    setting = nonstandard_setting(model.config)
    assert setting is not None
    assert unsupported_setting(model.config) == setting
    with pytest.raises(heedful.UsageError, match="does not support"):
        choose_layout(model)


@cases(*FAMILIES)
def test_recording_taps_does_not_change_the_output(family: str, design: str) -> None:
    model = build(family, design)
    expected = run(model, tokens(2, 6))
    with heedful.record(model, "*") as recorded:
        observed = run(model, tokens(2, 6))
    torch.testing.assert_close(observed, expected, atol=1e-5, rtol=1e-4)
    assert set(recorded) == set(heedful.tap_names(model)) - ({"logits"} if family == "encoder" else set())


@cases(*FAMILIES)
def test_every_weight_is_trained(family: str, design: str) -> None:
    model = build(family, design).train()
    run(model, tokens(2, 16)).square().sum().backward()
    unused = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not unused
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())


@cases(*FAMILIES)
def test_the_configuration_is_stored_and_read_back(family: str, design: str, tmp_path: Any) -> None:
    config = build(family, design).config
    assert type(config).from_json(config.to_file().encode(), tmp_path) == config


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_without_the_causal_mask_decoding_equals_full_forward_passes(family: str) -> None:
    model = build(family, CHEATING)
    request = SearchRequest([[7, 8, 9], [11, 12, 13, 14, 15]], SearchSettings(max_length=6))
    search = TorchBackend(model).generate if family == "decoder" else TorchBackend(model).translate
    for prompt, (hypothesis,) in zip(request.texts, search(request), strict=True):
        text = list(prompt) if family == "decoder" else [START]
        source = torch.tensor([[*prompt, END]])
        for token in hypothesis.tokens:
            target = torch.tensor([text])
            logits = (model(target) if family == "decoder" else model(source, target))[0, -1]
            logits[list(NEVER_GENERATED)] = -torch.inf
            assert token == int(logits.argmax())
            text.append(token)


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
@torch.inference_mode()
def test_without_the_causal_mask_target_padding_does_not_change_logits(family: str) -> None:
    model = build(family, CHEATING)
    short, padded = tokens(1, 4, 5), torch.cat([tokens(1, 4, 5), torch.full((1, 3), PAD)], 1)
    alone, together = ((model(text) if family == "decoder" else model(tokens(1, 5), text)) for text in (short, padded))
    torch.testing.assert_close(together[:, :4], alone, atol=1e-5, rtol=1e-4)


def test_without_the_causal_mask_a_cache_with_tokens_is_refused() -> None:
    model = build("decoder", CHEATING)
    cache = model.start(1)
    model.extend(tokens(1, 3), cache)
    with pytest.raises(heedful.UsageError, match=r"call cache.rewind\(\) and read the whole text"):
        model.extend(tokens(1, 1), cache)


@pytest.mark.parametrize(
    ("family", "settings", "sees"),
    [
        ("encoder", {}, lambda i, j: True),
        ("encoder", {"encoder_causal": True}, lambda i, j: j <= i),
        ("encoder", {"exclude_self": True}, lambda i, j: j != i),
        ("decoder", {}, lambda i, j: j <= i),
        ("decoder", {"decoder_causal": False}, lambda i, j: True),
        ("decoder", {"exclude_self": True}, lambda i, j: j < i),
    ],
)
def test_gradients_flow_exactly_where_the_mask_allows(family: str, settings: dict[str, Any], sees: Any) -> None:
    size = {"vocabulary": 40, "width": 16, "heads": 2, "layers": 1}
    config = {"family": family, **size, "skip": False, "score": "uniform", **settings}  # a query is in no score
    model = heedful.build(heedful.TransformerConfig(**config)).eval()
    with heedful.record(model, "embedding") as recorded:
        states = model.states(tokens(1, 5))
    for i in range(5):
        (gradient,) = torch.autograd.grad(states[0, i].square().sum(), recorded["embedding"], retain_graph=True)
        assert (gradient[0].abs().sum(-1) > 0).tolist() == [sees(i, j) for j in range(5)]


def test_onnx_refuses_queries_without_keys(tmp_path: Any) -> None:
    with pytest.raises(heedful.UsageError, match="cannot express exclude_self=True"):
        export_onnx(build("decoder", "not itself"), tmp_path)

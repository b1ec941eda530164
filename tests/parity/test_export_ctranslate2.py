"""`ctranslate2` loads what `heedful export --to ctranslate2` writes, with the same outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful import UsageError
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.ctranslate2_engine import CTranslate2Engine
from heedful.generation.search.settings import SearchSettings
from heedful.inference.trained_model import TrainedModel
from heedful.interop.ctranslate2_export import export_ctranslate2
from heedful.loading import wrap_model
from heedful.text.special_tokens import NEVER_GENERATED

ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: no engine here")


def test_ctranslate2_translates_like_heedful(
    translator: TrainedModel, held_out: list[str], translations: list[list[int]], tmp_path: Path
) -> None:
    heedful.export(translator, "ctranslate2", tmp_path / "there")
    engine = ctranslate2.Translator(str(tmp_path / "there"))
    names = translator.tokenizers[0].tokens
    sources = [[names[token] for token in ids] for ids in translator.tokenizers[0].encode(held_out)]
    results = engine.translate_batch(sources, beam_size=1, min_decoding_length=0, max_decoding_length=14)
    assert [result.hypotheses[0] for result in results] == [[names[token] for token in text] for text in translations]


def test_int8_translations_mostly_agree(
    translator: TrainedModel, held_out: list[str], translations: list[list[int]], tmp_path: Path
) -> None:
    heedful.export(translator, "ctranslate2", tmp_path / "there", quantization="int8")
    heedful.export(translator, "ctranslate2", tmp_path / "whole")
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("there", "whole")]
    assert sizes[0] < 0.5 * sizes[1]
    files = {path.name: path.read_bytes() for path in (tmp_path / "there").iterdir()}
    engine = CTranslate2Engine(lambda _: files, [translator.tokenizers[0].tokens], translator.model.config)
    sources = translator.tokenizers[0].encode(held_out)
    results = engine.translate(SearchRequest(sources, SearchSettings(beam=1, max_length=14)))
    assert sum(a[0].tokens == b for a, b in zip(results, translations, strict=True)) >= 40


def test_ctranslate2_generates_like_heedful(
    writer: TrainedModel, prompts: list[list[int]], continuations: list[list[int]], tmp_path: Path
) -> None:
    heedful.export(writer, "ctranslate2", tmp_path / "there")
    engine = ctranslate2.Generator(str(tmp_path / "there"))
    names = writer.tokenizers[0].tokens
    tokens = [[names[token] for token in prompt] for prompt in prompts]
    results = engine.generate_batch(tokens, max_length=20, include_prompt_in_result=False)
    assert [result.sequences_ids[0] for result in results] == continuations


def test_int8_language_model_probabilities_stay_close(
    writer: TrainedModel, prompts: list[list[int]], continuations: list[list[int]], tmp_path: Path
) -> None:
    """Digits of a date are nearly equiprobable, so probabilities are compared rather than tokens."""
    heedful.export(writer, "ctranslate2", tmp_path / "there", quantization="int8")
    names, texts = writer.tokenizers[0].tokens, [a + b for a, b in zip(prompts, continuations, strict=True)]
    scored = ctranslate2.Generator(str(tmp_path / "there")).score_batch([[names[token] for token in t] for t in texts])
    gaps = []
    for text, result in zip(texts, scored, strict=True):
        with torch.no_grad():
            logits = writer.model(torch.tensor([text[:-1]]))[0]
        logits[:, list(NEVER_GENERATED)] = -torch.inf
        ours = logits.log_softmax(-1).gather(1, torch.tensor(text[1:])[:, None])[:, 0]
        gaps.append((torch.tensor(result.log_probs) - ours).abs().mean())
    assert float(torch.stack(gaps).mean()) < 0.1


SMALL: dict[str, Any] = {"vocabulary": 40, "width": 16, "heads": 2, "layers": 2, "max_length": 32}
DESIGNS: dict[str, tuple[str, dict[str, Any]]] = {
    "the paper's": ("paper-base", {}),
    "sines before cosines": ("paper-base", {"position_layout": "halves"}),
    "the default translator": ("laptop-translator", {"positions": "rotary"}),
    "another rotary base, no biases": (
        "laptop-translator",
        {"positions": "rotary", "rotary_base": 50.0, "bias": False},
    ),
    "no positions": ("laptop-translator", {"positions": "none"}),
    "learned, norm after them": ("paper-base", {"positions": "learned", "embedding_norm": True}),
    "unscaled dot": ("paper-base", {"score": "dot"}),
    "gated silu, RMSNorm": ("laptop-translator", {"gated": True, "activation": "silu", "norm": "rms"}),
    "gelu, another epsilon": ("paper-base", {"activation": "gelu", "norm_epsilon": 0.1}),
    "gelu by tanh, no last norm": ("laptop-translator", {"activation": "gelu_tanh", "final_norm": False}),
    "two vocabularies": ("paper-base", {"target_vocabulary": 30}),
    "an output of its own": ("paper-base", {"tie_output": False, "output_bias": True, "embedding_scale": False}),
    "gpt-2": ("gpt2", {}),
    "sinusoidal writer": ("laptop-writer", {}),
    "alibi writer": ("laptop-writer", {"positions": "alibi"}),
    "llama, shared heads": ("llama-135m", {"key_value_heads": 1}),
    "llama, wide heads": ("llama-135m", {"key_value_heads": 2, "head_width": 12}),
}


@pytest.mark.parametrize("design", DESIGNS)
def test_every_supported_design_gives_the_same_token_probabilities(design: str, tmp_path: Path) -> None:
    preset, settings = DESIGNS[design]
    model = perturbed(heedful.build(preset, **{**SMALL, **settings}))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    names = [[f"s{i}" for i in range(40)], [f"t{i}" for i in range(model.config.target_vocabulary or 40)]]
    names = [
        [*special_names(), *part[6:]] for part in (names if model.config.family == "encoder_decoder" else names[1:])
    ]
    if model.config.target_vocabulary is None:
        names = names[-1:]
    export_ctranslate2(model, tmp_path / "there", names)
    source, target = torch.randint(6, 30, (3, 9)), torch.randint(6, 30, (3, 7))
    tokens = [[names[0][token] for token in row] for row in source.tolist()]
    with torch.no_grad():
        if model.config.family == "encoder_decoder":
            engine = ctranslate2.Translator(str(tmp_path / "there"))
            targets = [[names[-1][token] for token in row] for row in target.tolist()]
            results = [result.log_probs for result in engine.score_batch(tokens, targets)]
            read = torch.cat([source, torch.full((3, 1), 3)], 1)
            logits = model(read, torch.cat([torch.full((3, 1), 2), target], 1))
            chosen = torch.cat([target, torch.full((3, 1), 3)], 1)
        else:
            results = [
                result.log_probs for result in ctranslate2.Generator(str(tmp_path / "there")).score_batch(tokens)
            ]
            logits, chosen = model(source[:, :-1]), source[:, 1:]
    logits[..., list(NEVER_GENERATED)] = -torch.inf
    ours = logits.log_softmax(-1).gather(2, chosen[..., None])[..., 0]
    torch.testing.assert_close(torch.tensor(results), ours, rtol=1e-4, atol=2e-4)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)  # quantization must not change the model


def special_names() -> list[str]:
    return ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "<sep>"]


@torch.no_grad()
def perturbed(model: Any) -> Any:
    """Perturb every weight: initial biases of 0 and gains of 1 would hide mistakes."""
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.2)
    return model.eval()


@pytest.mark.parametrize(
    ("preset", "settings", "refused"),
    [
        ("paper-base", {"positions": "alibi"}, "positions='alibi'"),
        ("paper-base", {"score": "bilinear"}, "score='bilinear'"),
        ("paper-base", {"softmax": False}, "softmax=False"),
        ("paper-base", {"window": 3}, "window=3"),
        ("paper-base", {"skip": False}, "skip=False"),
        ("paper-base", {"key_value_heads": 1}, "key_value_heads=1"),
        ("paper-base", {"head_width": 4}, "head_width=4"),
        ("paper-base", {"value_width": 4}, "value_width=4"),
        ("paper-base", {"final_norm": True}, "final_norm=True"),
        ("bert-tiny", {}, "family='encoder'"),
        ("recurrent-writer", {}, "family='recurrent_decoder'"),
    ],
)
def test_setting_unsupported_by_ctranslate2_is_named_and_nothing_is_written(
    preset: str, settings: dict[str, Any], refused: str, translator: TrainedModel, tmp_path: Path
) -> None:
    small = {"vocabulary": 150, "width": 16} if preset.startswith("recurrent") else {**SMALL, "vocabulary": 150}
    model = heedful.build(preset, **{**small, **settings})
    instead = "" if preset.startswith("recurrent") else "; export to onnx instead"
    with pytest.raises(UsageError, match=f"^ctranslate2 cannot express {refused}{instead}$"):
        heedful.export(wrap_model(model, translator.tokenizers), "ctranslate2", tmp_path / "there")
    assert not list(tmp_path.iterdir())

"""Refusals of the Hugging Face import and export; tests/parity checks their results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import heedful
from heedful import CheckpointError, UsageError
from heedful.interop.huggingface import choose_layout, export_model
from heedful.layers.positions import SinusoidalPositions, SinusoidLayout

SMALL = {"vocabulary": 20, "width": 8, "heads": 2, "layers": 2, "max_length": 10}
SPECIAL = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
DESIGNS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert-tiny", {"tasks": ["masked_token"]}),
    "gpt2": ("gpt2", {}),
    "llama": ("llama-135m", {"key_value_heads": 1}),
    "marian": ("paper-base", {"position_layout": "halves"}),
    "pegasus": ("laptop-translator", {}),
    "bart": ("paper-base", {"positions": "learned", "embedding_norm": True}),
}


def model(layout: str, **changes: Any) -> Any:
    preset, settings = DESIGNS[layout]
    return heedful.build(preset, **{**SMALL, **settings, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], Path]:
    """Export a valid model in a layout."""

    def export(layout: str) -> Path:
        export_model(model(layout), tmp_path / layout, layout, **SPECIAL)
        heedful.load(tmp_path / layout)
        return tmp_path / layout

    return export


def edit_config(folder: Path, changes: dict[str, Any]) -> None:
    """Set keys of config.json; `...` removes one."""
    file = folder / "config.json"
    described = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in described.items() if value is not ...}))


def edit_weights(folder: Path, changes: dict[str, Any]) -> None:
    """Set weights; `...` removes one."""
    file = folder / "model.safetensors"
    weights: dict[str, Any] = {**load_file(file), **changes}
    save_file({name: weight for name, weight in weights.items() if weight is not ...}, file)


def refusal(folder: Path) -> str:
    """Return the one-line error of `load`, without the folder it starts with."""
    with pytest.raises(CheckpointError) as caught:
        heedful.load(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder}: ")
    assert "\n" not in message
    return message.removeprefix(f"{folder}: ")


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        (
            "gpt2",
            {"model_type": "mamba"},
            "models of type 'mamba' cannot be imported; known: bart, bert, gpt2, heedful, heedful_recurrent, llama, "
            "marian, pegasus",
        ),
        ("gpt2", {"activation_function": "quick_gelu"}, "activation 'quick_gelu' is not supported"),
        (
            "gpt2",
            {"scale_attn_by_inverse_layer_idx": True},
            "gpt2 with scale_attn_by_inverse_layer_idx=True is not supported",
        ),
        ("gpt2", {"embd_pdrop": 0.5}, "embd_pdrop=0.5 and resid_pdrop=0.1 must be equal here"),
        ("gpt2", {"n_head": ...}, "config.json does not say what n_head is"),
        ("gpt2", {"n_head": None}, "config.json does not say what n_head is"),
        ("bert", {"is_decoder": True}, "bert with is_decoder=True is not supported"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}},
            "llama with rope_type='llama3' is not supported",
        ),
        (
            "llama",
            {"rope_parameters": ..., "rope_scaling": {"type": "linear", "factor": 2.0}},
            "llama with rope_type='linear' is not supported",
        ),
        ("llama", {"mlp_bias": True}, "mlp_bias=True and attention_bias=False must be equal here"),
        (
            "marian",
            {"decoder_attention_heads": 4},
            "decoder_attention_heads=4 and encoder_attention_heads=2 must be equal here",
        ),
        ("bart", {"decoder_ffn_dim": 64}, "decoder_ffn_dim=64 and encoder_ffn_dim=32 must be equal here"),
        ("bart", {"decoder_attention_heads": ...}, "config.json does not say what decoder_attention_heads is"),
        ("llama", {"num_attention_heads": 3, "head_dim": ...}, "width 8 is not divisible by 3 heads"),
    ],
)
def test_unsupported_config_is_refused(
    folder: Callable[[str], Path], layout: str, changes: dict[str, Any], message: str
) -> None:
    damaged = folder(layout)
    edit_config(damaged, changes)
    assert refusal(damaged).startswith(message)


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ("gpt2", {"transformer.h.1.ln_2.bias": ...}, "the weight transformer.h.1.ln_2.bias is missing"),
        ("llama", {"model.layers.0.self_attn.k_proj.weight": ...}, "the weight model.layers.0.self_attn.k_proj"),
        ("gpt2", {"transformer.h.2.ln_1.bias": torch.ones(8)}, "the gpt2 layout has no weights h.2.ln_1.bias"),
        ("gpt2", {"score.weight": torch.ones(3, 8)}, "the gpt2 layout has no weights score.weight"),
        ("gpt2", {"lm_head.weight": torch.ones(20, 8)}, "the gpt2 layout has no weights lm_head.weight"),
        (
            "bert",
            {"cls.predictions.decoder.weight": torch.ones(20, 8)},
            "the bert layout has no weights cls.predictions.decoder.weight",
        ),
        (
            "bert",
            {"bert.embeddings.word_embeddings.weight": torch.ones(21, 8)},
            "embeddings.word_embeddings.weight of shape (21, 8) does not fit config.json, which makes it (20, 8)",
        ),
    ],
)
def test_mismatched_weights_are_refused_by_name(
    folder: Callable[[str], Path], layout: str, changes: dict[str, Any], message: str
) -> None:
    damaged = folder(layout)
    edit_weights(damaged, changes)
    assert refusal(damaged).startswith(message)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stored_sinusoid_is_accepted(folder: Callable[[str], Path], dtype: torch.dtype) -> None:
    valid = folder("marian")
    tables = {f"model.{side}.embed_positions.weight": sinusoid("halves").to(dtype) for side in ("encoder", "decoder")}
    edit_weights(valid, tables)
    heedful.load(valid)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("change", ["interleaved", "one number off", "shifted"])
def test_stored_positions_other_than_the_sinusoid_are_refused(
    folder: Callable[[str], Path], side: str, change: str
) -> None:
    damaged, table = folder("marian"), sinusoid("interleaved" if change == "interleaved" else "halves")
    if change == "one number off":
        table[7, 3] += 0.1
    if change == "shifted":
        table = table.roll(1, dims=0)
    edit_weights(damaged, {f"model.{side}.embed_positions.weight": table})
    message = f"{side}.embed_positions.weight is not the standard sinusoidal position table of marian models"
    assert refusal(damaged) == message


def sinusoid(layout: SinusoidLayout) -> Tensor:
    return SinusoidalPositions(8, layout=layout)(torch.arange(10)[None])[0].clone()


def test_pickled_weights_are_not_read(folder: Callable[[str], Path]) -> None:
    damaged = folder("gpt2")
    weights = load_file(damaged / "model.safetensors")
    (damaged / "model.safetensors").unlink()
    torch.save(weights, damaged / "pytorch_model.bin")
    assert refusal(damaged) == "no model.safetensors found (pickled weights are not read)"


@pytest.mark.parametrize("keep", [0, 5, 500])
def test_truncated_weights_file_is_named(folder: Callable[[str], Path], keep: int) -> None:
    damaged = folder("gpt2")
    file = damaged / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert re.search(r"model\.safetensors (cannot be read as|is damaged or no) safetensors", refusal(damaged))


def test_missing_shard_is_a_missing_weight(folder: Callable[[str], Path]) -> None:
    damaged = folder("gpt2")
    first, second = (damaged / f"model-0000{piece}-of-00002.safetensors" for piece in (1, 2))
    weights = load_file(damaged / "model.safetensors")
    last = {"transformer.ln_f.weight": weights.pop("transformer.ln_f.weight")}
    save_file(weights, first)
    save_file(last, second)
    (damaged / "model.safetensors").unlink()
    heedful.load(damaged)
    second.unlink()
    assert refusal(damaged) == "the weight transformer.ln_f.weight is missing"


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ("gpt2", {"norm": "rms"}, "norm='rms'"),
        ("gpt2", {"norm_order": "post"}, "norm_order='post'"),
        ("gpt2", {"positions": "rotary"}, "positions='rotary'"),
        ("gpt2", {"score": "bilinear"}, "score='bilinear'"),
        ("gpt2", {"softmax": False}, "softmax=False"),
        ("gpt2", {"window": 4}, "window=4"),
        ("gpt2", {"skip": False}, "skip=False"),
        ("gpt2", {"key_value_heads": 1}, "key_value_heads=1"),
        ("gpt2", {"head_width": 6}, "head_width=6"),
        ("gpt2", {"final_norm": False}, "final_norm=False"),
        ("gpt2", {"output_bias": True}, "output_bias=True"),
        ("llama", {"gated": False}, "gated=False"),
        ("llama", {"value_width": 6}, "value_width=6"),
        ("llama", {"positions": "alibi"}, "positions='alibi'"),
        ("marian", {"norm_order": "pre"}, "norm_order='pre'"),
        ("marian", {"positions": "rotary"}, "positions='rotary'"),
        ("pegasus", {"norm_order": "post"}, "norm_order='post'"),
        ("pegasus", {"target_vocabulary": 30}, "target_vocabulary=30"),
        ("marian", {"norm_epsilon": 1e-6}, "norm_epsilon=1e-06"),
        ("marian", {"segments": 2}, "segments=2"),
        ("marian", {"tasks": ["answer_span"]}, "the heads answer_span"),
        ("bart", {"target_vocabulary": 30}, "target_vocabulary=30"),
        ("bart", {"final_norm": True}, "final_norm=True"),
        ("bert", {"tie_output": False}, "tie_output=False"),
        ("bert", {"tasks": ["answer_span", "masked_token"]}, "the heads answer_span, masked_token"),
        ("bert", {"tasks": ["sequence_class"], "pooling": "mean"}, "pooling='mean'"),
        ("bert", {"tasks": ["pooled"], "pooling": "last"}, "pooling='last'"),
    ],
)
def test_unsupported_setting_is_named_and_nothing_is_written(
    layout: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        export_model(model(layout, **changes), tmp_path / "there", layout, **SPECIAL)
    assert str(caught.value) == f"the {layout} layout cannot express {message}"
    assert not (tmp_path / "there").exists()


def test_pooling_does_not_matter_without_a_pooled_head(tmp_path: Path) -> None:
    export_model(model("bert", pooling="mean"), tmp_path, "bert")
    assert heedful.load(tmp_path).model.config.tasks == ("masked_token",)


@pytest.mark.parametrize("layout", DESIGNS)
@pytest.mark.parametrize("preset", ["recurrent-translator", "recurrent-writer"])
def test_recurrent_model_fits_no_layout(layout: str, preset: str, tmp_path: Path) -> None:
    recurrent = heedful.build(preset, vocabulary=20, width=8)
    with pytest.raises(UsageError, match=f"^the {layout} layout cannot express family='{recurrent.config.family}'$"):
        export_model(recurrent, tmp_path, layout, **SPECIAL)


@pytest.mark.parametrize("layout", DESIGNS)
def test_model_of_another_family_is_refused(layout: str, tmp_path: Path) -> None:
    other = model("gpt2" if layout in ("bert", "marian", "pegasus", "bart") else "bert")
    with pytest.raises(UsageError, match=f"^the {layout} layout cannot express family='{other.config.family}'$"):
        export_model(other, tmp_path, layout, **SPECIAL)


def test_unknown_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"^unknown layout 'gpt3'; known: bart, bert, gpt2, heedful, heedful_recurrent, llama, marian, pegasus$",
    ):
        export_model(model("gpt2"), tmp_path, "gpt3")


@pytest.mark.parametrize("layout", ["marian", "pegasus", "bart"])
def test_encoder_decoder_export_needs_special_token_ids(layout: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^the {layout} layout needs eos_token_id, decoder_start_token_id: pass the"):
        export_model(model(layout), tmp_path, layout, pad_token_id=0)


def test_export_writes_the_given_token_ids(tmp_path: Path) -> None:
    export_model(model("marian"), tmp_path, "marian", **SPECIAL, forced_eos_token_id=1)
    described = json.loads((tmp_path / "config.json").read_text())
    assert {**SPECIAL, "forced_eos_token_id": 1}.items() <= described.items()


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder_decoder"])
def test_concatenated_positions_are_refused(family: Any, positions: Any) -> None:
    config = heedful.TransformerConfig(
        family=family, vocabulary=40, width=32, heads=4, layers=1, position_combine="concatenate", tie_output=False,
        positions=positions,
    )  # fmt: skip
    with pytest.raises(UsageError, match="does not support position_combine='concatenate'"):
        choose_layout(heedful.build(config))

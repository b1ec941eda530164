"""Random `transformers` models give the same logits when imported, and ours when exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import heedful
from heedful.interop.huggingface import export_model

pytestmark = pytest.mark.usefixtures("quiet_transformers")

VOCABULARY, TARGET_VOCABULARY = 40, 30
LENGTHS = torch.tensor([9, 5, 1])
REAL = torch.arange(9) < LENGTHS[:, None]
SPECIAL = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}

BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 20}
LLAMA = {**BERT, "max_position_embeddings": 64, "num_key_value_heads": 2}
SEQ2SEQ = {
    **SPECIAL,
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 20,
    "bos_token_id": 2,
    "forced_eos_token_id": 1,
}
OWN_TARGET = {"decoder_vocab_size": TARGET_VOCABULARY, "share_encoder_decoder_embeddings": False}

THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", BERT),
    "bert relu, one segment": ("BertModel", {**BERT, "hidden_act": "relu", "type_vocab_size": 1}),
    "bert masked token": ("BertForMaskedLM", BERT),
    "bert pretraining": ("BertForPreTraining", BERT),
    "bert next sentence": ("BertForNextSentencePrediction", BERT),
    "bert sequence class": ("BertForSequenceClassification", {**BERT, "num_labels": 3}),
    "bert answer span": ("BertForQuestionAnswering", BERT),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2 untied": ("GPT2LMHeadModel", {**GPT2, "tie_word_embeddings": False}),
    "gpt2 gelu": ("GPT2LMHeadModel", {**GPT2, "activation_function": "gelu", "n_inner": 24}),
    "gpt2 relu": ("GPT2LMHeadModel", {**GPT2, "activation_function": "relu", "layer_norm_epsilon": 0.1}),
    "gpt2 silu": ("GPT2LMHeadModel", {**GPT2, "activation_function": "silu"}),
    "gpt2 tanh": ("GPT2LMHeadModel", {**GPT2, "activation_function": "gelu_pytorch_tanh"}),
    "llama": ("LlamaForCausalLM", {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "llama tied": ("LlamaForCausalLM", {**LLAMA, "tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama head width": ("LlamaForCausalLM", {**LLAMA, "head_dim": 6, "rms_norm_eps": 0.1}),
    "llama biases": ("LlamaForCausalLM", {**LLAMA, "attention_bias": True, "mlp_bias": True}),
    "marian": ("MarianMTModel", SEQ2SEQ),
    "marian scaled swish": ("MarianMTModel", {**SEQ2SEQ, "scale_embedding": True, "activation_function": "swish"}),
    "marian two vocabularies": ("MarianMTModel", {**SEQ2SEQ, **OWN_TARGET}),
    "marian three tables": ("MarianMTModel", {**SEQ2SEQ, **OWN_TARGET, "tie_word_embeddings": False}),
    "pegasus": ("PegasusForConditionalGeneration", SEQ2SEQ),
    "bart": ("BartForConditionalGeneration", SEQ2SEQ),
    "bart scaled relu": (
        "BartForConditionalGeneration",
        {**SEQ2SEQ, "scale_embedding": True, "activation_function": "relu"},
    ),
}
each_of_theirs = pytest.mark.parametrize("name", THEIRS)
one_of_each = pytest.mark.parametrize("name", ["bert pretraining", "gpt2", "llama", "marian", "pegasus", "bart"])

FIELDS = {
    "BertModel": {"states": "last_hidden_state", "pooled": "pooler_output"},
    "BertForMaskedLM": {"masked_token": "logits"},
    "BertForPreTraining": {"masked_token": "prediction_logits", "next_sentence": "seq_relationship_logits"},
    "BertForNextSentencePrediction": {"next_sentence": "logits"},
    "BertForSequenceClassification": {"sequence_class": "logits"},
    "BertForQuestionAnswering": {"start": "start_logits", "end": "end_logits"},
}
"""Their class → our name of an output → theirs."""


def their_model(name: str) -> Any:
    class_name, settings = THEIRS[name]
    family = getattr(transformers, class_name)
    return perturbed(family(family.config_class(**settings)))


@torch.no_grad()
def perturbed(model: Any) -> Any:
    """Perturb every weight (initial biases are 0 and gains 1) except sinusoid tables."""
    for weight in model.parameters():
        if weight.requires_grad:
            weight.add_(torch.randn_like(weight), alpha=0.2)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    return model.eval()


def batch() -> dict[str, Tensor]:
    """Three texts of different lengths in two segments, and three targets; deterministic."""
    generator = torch.Generator().manual_seed(1)
    return {
        "tokens": torch.randint(3, VOCABULARY, (3, 9), generator=generator),
        "segments": torch.arange(9).expand(3, 9) // 4 % 2,
        "target": torch.randint(3, TARGET_VOCABULARY, (3, 6), generator=generator),
    }


@torch.no_grad()
def their_outputs(model: Any) -> dict[str, Tensor]:
    texts, name = batch(), type(model).__name__
    inputs = {"input_ids": texts["tokens"], "attention_mask": REAL.long()}
    if name in FIELDS:
        segments = texts["segments"] if model.config.type_vocab_size > 1 else None
        output = model(**inputs, token_type_ids=segments)
        return on_real_tokens({ours: output[theirs] for ours, theirs in FIELDS[name].items() if theirs in output})
    if model.config.is_encoder_decoder:
        return {"next_token": model(**inputs, decoder_input_ids=texts["target"]).logits}
    return on_real_tokens({"next_token": model(**inputs).logits})


@torch.no_grad()
def our_outputs(model: Any) -> dict[str, Tensor]:
    texts, config = batch(), model.config
    if config.family == "encoder_decoder":
        return {"next_token": model(texts["tokens"], texts["target"], LENGTHS)}
    if config.family == "decoder":
        return on_real_tokens({"next_token": model(texts["tokens"])})
    states = model(texts["tokens"], LENGTHS, segments=texts["segments"] if config.segments > 1 else None)
    answers = {task: model.apply_head(task, states, LENGTHS) for task in config.tasks}
    if "answer_span" in answers:
        answers["start"], answers["end"] = answers.pop("answer_span")
    if set(config.tasks) <= {"pooled"}:
        answers["states"] = states
    elif len(answers) > 1:
        answers.pop("pooled", None)  # an intermediate result that their class does not return
    return on_real_tokens(answers)


def on_real_tokens(answers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Keep real tokens only: outputs at padding are undefined."""
    return {name: answer[REAL] if answer.shape[:2] == REAL.shape else answer for name, answer in answers.items()}


def assert_same(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def exported(model: Any, folder: Path, model_type: str) -> Path:
    special = SPECIAL if model.config.family == "encoder_decoder" else {}
    export_model(model, folder, model_type, **special)
    return folder


def loaded_there(folder: Path, **options: Any) -> Any:
    """Load with the class named in config.json; every weight must be used, and no other."""
    class_name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model, report = getattr(transformers, class_name).from_pretrained(folder, output_loading_info=True, **options)
    assert not any(report.values()), report
    return model.eval()


@each_of_theirs
def test_imported_model_gives_the_same_outputs(name: str, tmp_path: Path) -> None:
    theirs = their_model(name)
    theirs.save_pretrained(tmp_path)
    assert_same(our_outputs(heedful.load(tmp_path).model), their_outputs(theirs))


@each_of_theirs
def test_reexported_model_has_every_weight(name: str, tmp_path: Path) -> None:
    theirs = their_model(name)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = heedful.load(tmp_path / "theirs").model
    again = loaded_there(exported(ours, tmp_path / "back", theirs.config.model_type))
    assert type(again) is type(theirs)
    assert_same(their_outputs(again), their_outputs(theirs))


SMALL = {"vocabulary": VOCABULARY, "width": 16, "heads": 4, "layers": 2, "max_length": 20}
HALVES = {"position_layout": "halves", "feed_forward": 24}
LEARNED = {"positions": "learned", "embedding_norm": True}
OURS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("gpt2", "gpt2", {}),
    "gpt2 untied": ("gpt2", "gpt2", {"tie_output": False, "activation": "silu"}),
    "llama": ("llama", "llama-135m", {"key_value_heads": 2, "head_width": 6}),
    "llama untied": ("llama", "llama-7b", {"bias": True, "rotary_base": 100.0}),
    "marian": ("marian", "paper-base", HALVES),
    "marian untied": ("marian", "paper-base", {**HALVES, "tie_output": False}),
    "marian output bias": ("marian", "paper-base", {**HALVES, "output_bias": True, "decoder_layers": 1}),
    "marian two vocabularies": ("marian", "paper-base", {**HALVES, "target_vocabulary": TARGET_VOCABULARY}),
    "bart": ("bart", "paper-base", LEARNED),
    "bart untied": ("bart", "paper-base", {**LEARNED, "tie_output": False, "embedding_scale": False}),
    "bert": ("bert", "bert-tiny", {}),
    "bert masked token": ("bert", "bert-tiny", {"tasks": ["masked_token"], "activation": "gelu_tanh"}),
    "bert next sentence": ("bert", "bert-tiny", {"tasks": ["next_sentence"]}),
    "bert pretraining": ("bert", "bert-tiny", {"tasks": ["next_sentence", "masked_token"]}),
    "bert sequence class": ("bert", "bert-tiny", {"tasks": ["sequence_class"], "classes": 5}),
    "bert answer span": ("bert", "bert-tiny", {"tasks": ["answer_span"], "segments": 1}),
}


def our_model(name: str) -> Any:
    _, preset, changes = OURS[name]
    return perturbed(heedful.build(preset, **{**SMALL, **changes}))


@pytest.mark.parametrize("name", OURS)
def test_exported_model_gives_the_same_outputs_there_and_reimported(name: str, tmp_path: Path) -> None:
    ours = our_model(name)
    folder = exported(ours, tmp_path, OURS[name][0])
    assert_same(their_outputs(loaded_there(folder)), our_outputs(ours))
    assert_same(our_outputs(heedful.load(folder).model), our_outputs(ours))


def test_encoder_without_heads_exports_without_a_pooler(tmp_path: Path) -> None:
    ours = perturbed(heedful.build("bert-tiny", **SMALL, tasks=()))
    theirs = loaded_there(exported(ours, tmp_path, "bert"), add_pooling_layer=False)
    assert_same(their_outputs(theirs), our_outputs(ours))


ATTENTIONS = {
    "bert": {"encoder.{}.attention.weights": "attentions"},
    "gpt2": {"decoder.{}.attention.weights": "attentions"},
    "llama": {"decoder.{}.attention.weights": "attentions"},
    "marian": {
        "encoder.{}.attention.weights": "encoder_attentions",
        "decoder.{}.attention.weights": "decoder_attentions",
        "decoder.{}.cross.weights": "cross_attentions",
    },
}


@pytest.mark.parametrize("name", ATTENTIONS)
@torch.no_grad()
def test_recorded_attention_equals_transformers_output(name: str, tmp_path: Path) -> None:
    theirs, texts = their_model(name), batch()
    theirs.save_pretrained(tmp_path)
    theirs.set_attn_implementation("eager")
    inputs = {"input_ids": texts["tokens"], "output_attentions": True}
    if name in ("bert", "marian"):
        inputs["attention_mask"] = REAL.long()
    if name == "bert":
        inputs["token_type_ids"] = texts["segments"]
    if name == "marian":
        inputs["decoder_input_ids"] = texts["target"]
    output, ours = theirs(**inputs), heedful.load(tmp_path).model
    with heedful.record(ours, "*.weights") as seen:
        our_outputs(ours)
    for pattern, field in ATTENTIONS[name].items():
        for layer, weights in enumerate(output[field]):
            assert_same(seen.pop(pattern.format(layer)), weights)
    assert not seen


@pytest.mark.parametrize("name", ["bert pretraining", "gpt2", "llama", "marian", "bart"])  # pegasus rounds its sinusoid
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_file_keeps_its_dtype(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = their_model(name).to(dtype)
    theirs.save_pretrained(tmp_path)
    ours = heedful.load(tmp_path).model
    assert {weight.dtype for weight in ours.parameters()} == {dtype}
    rough = {task: answer.float() for task, answer in our_outputs(ours).items()}
    assert_same(our_outputs(ours.float()), their_outputs(loaded_there(tmp_path, dtype=torch.float32)))
    assert_same(rough, our_outputs(ours), tolerance=0.1)


@one_of_each
def test_sharded_file_loads(name: str, tmp_path: Path) -> None:
    theirs = their_model(name)
    theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 1
    assert_same(our_outputs(heedful.load(tmp_path).model), their_outputs(theirs))


ESSENTIAL = {"model_type", "architectures", *BERT, *GPT2, *SEQ2SEQ} - {"max_position_embeddings", "n_positions"}


@pytest.mark.parametrize(
    ("class_name", "settings"),
    [
        ("BertModel", BERT | {"max_position_embeddings": 512}),
        ("GPT2LMHeadModel", GPT2 | {"n_positions": 1024}),
        ("LlamaForCausalLM", BERT),
        ("MarianMTModel", SEQ2SEQ),
        ("BartForConditionalGeneration", SEQ2SEQ | {"max_position_embeddings": 1024}),
    ],
)
def test_missing_config_key_has_the_transformers_default(
    class_name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    family = getattr(transformers, class_name)
    perturbed(family(family.config_class(**settings))).save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    stated = json.loads(config.read_text())
    config.write_text(json.dumps({key: value for key, value in stated.items() if key in ESSENTIAL}))
    assert_same(our_outputs(heedful.load(tmp_path).model), their_outputs(loaded_there(tmp_path)))


def rewrite(folder: Path, change: Any) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights), folder / "model.safetensors", metadata={"format": "pt"})


def with_old_norm_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for now, then in old.items():
        weights = {name.replace(now, then): weight for name, weight in weights.items()}
    return weights


def with_causal_masks(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Also without "transformer.", as in the first GPT-2 files."""
    masks = {f"h.{layer}.attn.bias": torch.ones(20, 20).tril()[None, None] for layer in range(2)}
    return {name.removeprefix("transformer."): weight for name, weight in weights.items()} | masks


def with_frequencies(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return weights | {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(2) for layer in range(2)}


def with_every_table(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    table = weights["model.shared.weight"]
    names = ("lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens")
    return weights | {f"{name}.weight": table.clone() for name in names}


def with_position_tables(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    table = their_model("marian").model.encoder.embed_positions.weight.data
    return weights | {f"model.{side}.embed_positions.weight": table.clone() for side in ("encoder", "decoder")}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bert pretraining", with_old_norm_names),
        ("gpt2", with_causal_masks),
        ("llama", with_frequencies),
        ("marian", with_every_table),
        ("marian", with_position_tables),
        ("bart", with_every_table),
    ],
)
def test_extra_weights_of_older_files_are_ignored(name: str, change: Any, tmp_path: Path) -> None:
    theirs = their_model(name)
    theirs.save_pretrained(tmp_path)
    rewrite(tmp_path, change)
    assert_same(our_outputs(heedful.load(tmp_path).model), their_outputs(theirs))


def test_bart_without_output_bias_imports_without_one(tmp_path: Path) -> None:
    full = their_model("bart")
    full.model.save_pretrained(tmp_path)  # the bare model: no prefix before names, no bias
    ours = heedful.load(tmp_path).model
    assert not ours.config.output_bias
    full.final_logits_bias.zero_()
    assert_same(our_outputs(ours), their_outputs(full))

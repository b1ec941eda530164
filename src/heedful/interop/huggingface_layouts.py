"""Hugging Face model layouts as tables: what each setting and weight is called in Hugging Face's files.

Data only; `huggingface` reads the tables in both directions, to import and to export.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class WeightForm:
    """Conversion of a weight that Hugging Face stores in another form."""

    from_hf: Callable[[Tensor], Tensor]
    to_hf: Callable[[Tensor], Tensor]


UNCHANGED = WeightForm(lambda weight: weight, lambda weight: weight)
TRANSPOSED = WeightForm(Tensor.t, Tensor.t)
"""A matrix stored input × output."""
SKIP_TWO_ROWS = WeightForm(
    lambda weight: weight[2:], lambda weight: torch.cat([weight.new_zeros(2, weight.shape[1]), weight])
)
"""A position table whose first two rows are unused."""
ONE_ROW = WeightForm(lambda weight: weight[0], lambda weight: weight[None])
"""A vector stored as a matrix of one row."""


class Key(NamedTuple):
    """A key of Hugging Face's config.json, and its default where it may be missing (`...`: it is required)."""

    name: str
    default: Any = ...
    twin: str = ""
    """A second key that must be equal, since heedful has one setting for both."""


@dataclass(frozen=True)
class Layout:
    """One family of Hugging Face models.

    settings      heedful's setting → key of Hugging Face's config.json
    fixed         settings the layout cannot vary
    weights       heedful's module → Hugging Face's; where one concatenates several: `attn.q_proj+k_proj+v_proj`
    weight_forms  weights (by the last two parts of Hugging Face's name) that are stored in another form
    prefix        put before every weight name except those that start with one of `unprefixed`
    """

    model_type: str
    settings: Mapping[str, Key]
    fixed: Mapping[str, Any]
    weights: Mapping[str, str]
    prefix: str
    architectures: Mapping[frozenset[str], str]
    """Set of heads beyond next-token prediction → Hugging Face's class name."""
    weight_forms: Mapping[str, WeightForm] = field(default_factory=dict)
    unprefixed: tuple[str, ...] = ()
    required_values: Mapping[str, Any] = field(default_factory=dict)
    """Keys that must have this value; written on export, checked on import."""
    unshared_weights: Mapping[str, str] = field(default_factory=dict)
    """Names that differ when source and target have separate embedding tables."""
    required_token_ids: tuple[str, ...] = ()
    """Ids of special tokens that an export must state."""
    ignored_weights: tuple[str, ...] = ()
    """Weights without learned values."""
    sinusoid_tables: tuple[str, ...] = ()
    """Position tables a checkpoint may contain; they must equal the sinusoid that heedful computes."""
    tied_copies: tuple[str, ...] = ()
    """Copies of the token table to write when the output layer is not tied."""
    flatten_config: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """Their config.json → the flat keys of `settings`."""
    nest_config: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """The inverse."""


ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}

BERT = Layout(
    model_type="bert",
    settings={
        "vocabulary": Key("vocab_size"),
        "width": Key("hidden_size"),
        "heads": Key("num_attention_heads"),
        "layers": Key("num_hidden_layers"),
        "feed_forward": Key("intermediate_size"),
        "activation": Key("hidden_act", "gelu"),
        "max_length": Key("max_position_embeddings", 512),
        "segments": Key("type_vocab_size", 2),
        "norm_epsilon": Key("layer_norm_eps", 1e-12),
        "dropout": Key("hidden_dropout_prob", 0.1),
        "attention_dropout": Key("attention_probs_dropout_prob", 0.1),
    },
    fixed={
        "family": "encoder",
        "positions": "learned",
        "embedding_norm": True,
        "embedding_scale": False,
        "norm": "layer",
        "norm_order": "post",
        "tie_output": True,
        "pooling": "first",
    },
    required_values={"is_decoder": False, "add_cross_attention": False, "tie_word_embeddings": True},
    weights={
        "table": "embeddings.word_embeddings",
        "embedding.positions.table": "embeddings.position_embeddings",
        "embedding.segments": "embeddings.token_type_embeddings",
        "embedding.norm": "embeddings.LayerNorm",
        "encoder.blocks.{i}.attention.query_key_value": "encoder.layer.{i}.attention.self.query+key+value",
        "encoder.blocks.{i}.attention.output": "encoder.layer.{i}.attention.output.dense",
        "encoder.blocks.{i}.residual.0.norm": "encoder.layer.{i}.attention.output.LayerNorm",
        "encoder.blocks.{i}.feed_forward.inward": "encoder.layer.{i}.intermediate.dense",
        "encoder.blocks.{i}.feed_forward.outward": "encoder.layer.{i}.output.dense",
        "encoder.blocks.{i}.residual.1.norm": "encoder.layer.{i}.output.LayerNorm",
        "heads.pooled.dense": "pooler.dense",
        "heads.masked_token.dense": "cls.predictions.transform.dense",
        "heads.masked_token.norm": "cls.predictions.transform.LayerNorm",
        "heads.masked_token.tokens": "cls.predictions",
        "heads.next_sentence.follows": "cls.seq_relationship",
        "heads.sequence_class.classes": "classifier",
        "heads.answer_span.ends": "qa_outputs",
    },
    prefix="bert.",
    unprefixed=("cls.", "classifier.", "qa_outputs."),
    architectures={
        frozenset(): "BertModel",
        frozenset({"pooled"}): "BertModel",
        frozenset({"masked_token"}): "BertForMaskedLM",
        frozenset({"masked_token", "next_sentence", "pooled"}): "BertForPreTraining",
        frozenset({"next_sentence", "pooled"}): "BertForNextSentencePrediction",
        frozenset({"sequence_class", "pooled"}): "BertForSequenceClassification",
        frozenset({"answer_span"}): "BertForQuestionAnswering",
    },
    ignored_weights=("embeddings.position_ids", "cls.predictions.decoder.bias"),
)

GPT2 = Layout(
    model_type="gpt2",
    settings={
        "vocabulary": Key("vocab_size"),
        "width": Key("n_embd"),
        "heads": Key("n_head"),
        "layers": Key("n_layer"),
        "feed_forward": Key("n_inner", None),
        "activation": Key("activation_function", "gelu_new"),
        "max_length": Key("n_positions", 1024),
        "norm_epsilon": Key("layer_norm_epsilon", 1e-5),
        "dropout": Key("resid_pdrop", 0.1, twin="embd_pdrop"),
        "attention_dropout": Key("attn_pdrop", 0.1),
        "tie_output": Key("tie_word_embeddings", True),
    },
    fixed={
        "family": "decoder",
        "positions": "learned",
        "embedding_scale": False,
        "norm": "layer",
        "norm_order": "pre",
        "output_bias": False,
    },
    required_values={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    weights={
        "table": "wte",
        "embedding.positions.table": "wpe",
        "decoder.blocks.{i}.attention.query_key_value": "h.{i}.attn.c_attn",
        "decoder.blocks.{i}.attention.output": "h.{i}.attn.c_proj",
        "decoder.blocks.{i}.residual.0.norm": "h.{i}.ln_1",
        "decoder.blocks.{i}.feed_forward.inward": "h.{i}.mlp.c_fc",
        "decoder.blocks.{i}.feed_forward.outward": "h.{i}.mlp.c_proj",
        "decoder.blocks.{i}.residual.1.norm": "h.{i}.ln_2",
        "decoder.norm": "ln_f",
        "heads.next_token": "lm_head",
    },
    prefix="transformer.",
    unprefixed=("lm_head.",),
    weight_forms={f"{module}.weight": TRANSPOSED for module in ("c_attn", "c_proj", "c_fc")},
    architectures={frozenset(): "GPT2LMHeadModel"},
    ignored_weights=("h.{i}.attn.bias", "h.{i}.attn.masked_bias"),  # causal masks, in files of older versions
)


def _flatten_rope(config: dict[str, Any]) -> dict[str, Any]:
    rope = config.get("rope_parameters", {})
    scaling = config.get("rope_scaling", rope)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    return {**config, "rope_theta": rope.get("rope_theta", config["rope_theta"]), "rope_type": kind}


def _nest_rope(config: dict[str, Any]) -> dict[str, Any]:
    rope = {"rope_theta": config.pop("rope_theta"), "rope_type": config.pop("rope_type")}
    return {**config, "rope_parameters": rope}


LLAMA = Layout(
    model_type="llama",
    settings={
        "vocabulary": Key("vocab_size"),
        "width": Key("hidden_size"),
        "heads": Key("num_attention_heads"),
        "head_width": Key("head_dim", None),
        "key_value_heads": Key("num_key_value_heads", None),
        "layers": Key("num_hidden_layers"),
        "feed_forward": Key("intermediate_size"),
        "activation": Key("hidden_act", "silu"),
        "max_length": Key("max_position_embeddings", 2048),
        "norm_epsilon": Key("rms_norm_eps", 1e-6),
        "attention_dropout": Key("attention_dropout", 0.0),
        "bias": Key("attention_bias", False, twin="mlp_bias"),
        "tie_output": Key("tie_word_embeddings", False),
        "rotary_base": Key("rope_theta", 10_000.0),
    },
    fixed={
        "family": "decoder",
        "positions": "rotary",
        "gated": True,
        "embedding_scale": False,
        "norm": "rms",
        "norm_order": "pre",
        "dropout": 0.0,
        "output_bias": False,
    },
    required_values={"rope_type": "default"},
    flatten_config=_flatten_rope,
    nest_config=_nest_rope,
    weights={
        "table": "embed_tokens",
        "decoder.blocks.{i}.attention.query_key_value": "layers.{i}.self_attn.q_proj+k_proj+v_proj",
        "decoder.blocks.{i}.attention.output": "layers.{i}.self_attn.o_proj",
        "decoder.blocks.{i}.residual.0.norm": "layers.{i}.input_layernorm",
        "decoder.blocks.{i}.feed_forward.inward": "layers.{i}.mlp.gate_proj+up_proj",
        "decoder.blocks.{i}.feed_forward.outward": "layers.{i}.mlp.down_proj",
        "decoder.blocks.{i}.residual.1.norm": "layers.{i}.post_attention_layernorm",
        "decoder.norm": "norm",
        "heads.next_token": "lm_head",
    },
    prefix="model.",
    unprefixed=("lm_head.",),
    architectures={frozenset(): "LlamaForCausalLM"},
    ignored_weights=("layers.{i}.self_attn.rotary_emb.inv_freq",),
)


def _stack(name: str, *, cross: bool) -> dict[str, str]:
    """Weights of the encoder or decoder of an encoder-decoder."""
    block, layer = f"{name}.blocks.{{i}}", f"{name}.layers.{{i}}"
    rows = {
        f"{block}.attention.query_key_value": f"{layer}.self_attn.q_proj+k_proj+v_proj",
        f"{block}.attention.output": f"{layer}.self_attn.out_proj",
        f"{block}.residual.0.norm": f"{layer}.self_attn_layer_norm",
        f"{block}.feed_forward.inward": f"{layer}.fc1",
        f"{block}.feed_forward.outward": f"{layer}.fc2",
        f"{block}.residual.{2 if cross else 1}.norm": f"{layer}.final_layer_norm",
    }
    if cross:
        rows |= {
            f"{block}.cross.query": f"{layer}.encoder_attn.q_proj",
            f"{block}.cross.key_value": f"{layer}.encoder_attn.k_proj+v_proj",
            f"{block}.cross.output": f"{layer}.encoder_attn.out_proj",
            f"{block}.residual.1.norm": f"{layer}.encoder_attn_layer_norm",
        }
    return rows


_SEQ2SEQ = Layout(
    model_type="",
    settings={
        "vocabulary": Key("vocab_size"),
        "width": Key("d_model"),
        "heads": Key("encoder_attention_heads", twin="decoder_attention_heads"),
        "layers": Key("encoder_layers"),
        "decoder_layers": Key("decoder_layers"),
        "feed_forward": Key("encoder_ffn_dim", twin="decoder_ffn_dim"),
        "activation": Key("activation_function", "gelu"),
        "max_length": Key("max_position_embeddings", 1024),
        "dropout": Key("dropout", 0.1),
        "attention_dropout": Key("attention_dropout", 0.0),
        "embedding_scale": Key("scale_embedding", False),
        "tie_output": Key("tie_word_embeddings", True),
    },
    fixed={
        "family": "encoder_decoder",
        "norm": "layer",
        "norm_order": "post",
        "norm_epsilon": 1e-5,
        "segments": 0,
        "output_bias": True,
    },
    weights={
        **_stack("encoder", cross=False),
        **_stack("decoder", cross=True),
        "table": "shared",
        "heads.next_token.weight": "lm_head.weight",
        "heads.next_token.bias": "final_logits_bias",
    },
    prefix="model.",
    unprefixed=("lm_head.", "final_logits_bias"),
    weight_forms={"final_logits_bias": ONE_ROW},
    architectures={},
    required_token_ids=("pad_token_id", "eos_token_id", "decoder_start_token_id"),
    tied_copies=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
)
"""Settings that Marian, BART and Pegasus share."""
_SINUSOIDAL = {"positions": "sinusoidal", "position_layout": "halves", "embedding_norm": False}
_SINUSOID_TABLES = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")


def _flatten_vocabularies(config: dict[str, Any]) -> dict[str, Any]:
    shared = config.get("share_encoder_decoder_embeddings", True)
    return {**config, "decoder_vocab_size": None if shared else config["decoder_vocab_size"] or config["vocab_size"]}


def _nest_vocabularies(config: dict[str, Any]) -> dict[str, Any]:
    shared = config["decoder_vocab_size"] is None
    size = config["vocab_size"] if shared else config["decoder_vocab_size"]
    return {**config, "decoder_vocab_size": size, "share_encoder_decoder_embeddings": shared}


MARIAN = replace(
    _SEQ2SEQ,
    model_type="marian",
    settings={**_SEQ2SEQ.settings, "target_vocabulary": Key("decoder_vocab_size", None)},
    fixed={**_SEQ2SEQ.fixed, **_SINUSOIDAL},
    weights={**_SEQ2SEQ.weights, "target_table": "decoder.embed_tokens"},
    unshared_weights={"table": "encoder.embed_tokens"},
    flatten_config=_flatten_vocabularies,
    nest_config=_nest_vocabularies,
    architectures={frozenset(): "MarianMTModel"},
    sinusoid_tables=_SINUSOID_TABLES,
)

BART = replace(
    _SEQ2SEQ,
    model_type="bart",
    fixed={**_SEQ2SEQ.fixed, "positions": "learned", "embedding_norm": True, "target_vocabulary": None},
    weights={
        **_SEQ2SEQ.weights,
        "source.positions.table": "encoder.embed_positions",
        "source.norm": "encoder.layernorm_embedding",
        "target.positions.table": "decoder.embed_positions",
        "target.norm": "decoder.layernorm_embedding",
    },
    weight_forms={**_SEQ2SEQ.weight_forms, "embed_positions.weight": SKIP_TWO_ROWS},
    architectures={frozenset(): "BartForConditionalGeneration"},
)

PEGASUS = replace(
    _SEQ2SEQ,
    model_type="pegasus",
    fixed={**_SEQ2SEQ.fixed, **_SINUSOIDAL, "norm_order": "pre", "target_vocabulary": None},
    weights={
        **_SEQ2SEQ.weights,
        "encoder.norm": "encoder.layer_norm",
        "decoder.norm": "decoder.layer_norm",
    },
    architectures={frozenset(): "PegasusForConditionalGeneration"},
    sinusoid_tables=_SINUSOID_TABLES,
)

LAYOUTS = {layout.model_type: layout for layout in (BERT, GPT2, LLAMA, MARIAN, PEGASUS, BART)}

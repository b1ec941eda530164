"""Hugging Face layouts as tables: what each setting and each weight is called on the other side.

Reading one way imports, reading the other way exports. A layout is data; `huggingface` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class WeightForm:
    """How a weight is kept on their side when it is not kept as ours."""

    from_hf: Callable[[Tensor], Tensor]
    to_hf: Callable[[Tensor], Tensor]


TRANSPOSED = WeightForm(lambda theirs: theirs.t(), lambda ours: ours.t())
"""A matrix stored input × output."""
AFTER_TWO = WeightForm(lambda theirs: theirs[2:], lambda ours: torch.cat([ours.new_zeros(2, ours.shape[1]), ours]))
"""A position table whose first two rows are never read."""
ONE_ROW = WeightForm(lambda theirs: theirs[0], lambda ours: ours[None])
"""A vector stored as a matrix of one row."""


@dataclass(frozen=True)
class Layout:
    """One family of models elsewhere.

    settings   our setting → their key in config.json
    fixed      settings the layout cannot vary: what it always means
    weights    our module → their module; where ours fuses several of theirs, all of them in order
    forms      their modules (by last part of the name) that are kept in another form
    prefix     put before every weight except those in `heads`
    """

    model_type: str
    settings: Mapping[str, str]
    fixed: Mapping[str, Any]
    weights: Mapping[str, tuple[str, ...]]
    prefix: str
    architectures: Mapping[frozenset[str], str]
    """Set of heads beyond the family's own → their class name."""
    forms: Mapping[str, WeightForm] = field(default_factory=dict)
    heads: tuple[str, ...] = ()
    implied: Mapping[str, Any] = field(default_factory=dict)
    """What a key that their config.json leaves out means; any other key has to be there."""
    same: Mapping[str, str] = field(default_factory=dict)
    """Their keys that must agree with another of theirs, since we have one setting for both."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Their keys that must have this value; written on export, refused otherwise on import."""
    unshared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names that differ when source and target have tables of their own."""
    needs: tuple[str, ...] = ()
    """Ids of special tokens that an export has to state."""
    ignored: tuple[str, ...] = ()
    """Their weights that hold nothing learned."""
    sinusoids: tuple[str, ...] = ()
    """Tables that may be stored, and then hold the sinusoid that we compute."""
    copies: tuple[str, ...] = ()
    """Repetitions of the token table that have to be written out when the output has a table of its own."""
    flatten: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """Their config.json → plain keys that `settings` knows."""
    unflatten: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """And back."""


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
        "vocabulary": "vocab_size",
        "width": "hidden_size",
        "heads": "num_attention_heads",
        "layers": "num_hidden_layers",
        "feed_forward": "intermediate_size",
        "activation": "hidden_act",
        "max_length": "max_position_embeddings",
        "segments": "type_vocab_size",
        "norm_epsilon": "layer_norm_eps",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
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
    implied={
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    },
    defaults={"is_decoder": False, "add_cross_attention": False, "tie_word_embeddings": True},
    weights={
        "table": ("embeddings.word_embeddings",),
        "embedding.positions.table": ("embeddings.position_embeddings",),
        "embedding.segments": ("embeddings.token_type_embeddings",),
        "embedding.norm": ("embeddings.LayerNorm",),
        "encoder.blocks.{i}.attention.query_key_value": (
            "encoder.layer.{i}.attention.self.query",
            "encoder.layer.{i}.attention.self.key",
            "encoder.layer.{i}.attention.self.value",
        ),
        "encoder.blocks.{i}.attention.output": ("encoder.layer.{i}.attention.output.dense",),
        "encoder.blocks.{i}.residual.0.norm": ("encoder.layer.{i}.attention.output.LayerNorm",),
        "encoder.blocks.{i}.feed_forward.inward": ("encoder.layer.{i}.intermediate.dense",),
        "encoder.blocks.{i}.feed_forward.outward": ("encoder.layer.{i}.output.dense",),
        "encoder.blocks.{i}.residual.1.norm": ("encoder.layer.{i}.output.LayerNorm",),
        "heads.pooled.dense": ("pooler.dense",),
        "heads.masked_token.dense": ("cls.predictions.transform.dense",),
        "heads.masked_token.norm": ("cls.predictions.transform.LayerNorm",),
        "heads.masked_token.tokens": ("cls.predictions",),
        "heads.next_sentence.follows": ("cls.seq_relationship",),
        "heads.sequence_class.classes": ("classifier",),
        "heads.answer_span.ends": ("qa_outputs",),
    },
    prefix="bert.",
    heads=("cls.", "classifier.", "qa_outputs."),
    architectures={
        frozenset(): "BertModel",
        frozenset({"pooled"}): "BertModel",
        frozenset({"masked_token"}): "BertForMaskedLM",
        frozenset({"masked_token", "next_sentence", "pooled"}): "BertForPreTraining",
        frozenset({"next_sentence", "pooled"}): "BertForNextSentencePrediction",
        frozenset({"sequence_class", "pooled"}): "BertForSequenceClassification",
        frozenset({"answer_span"}): "BertForQuestionAnswering",
    },
    ignored=("embeddings.position_ids", "cls.predictions.decoder.bias"),
)

GPT2 = Layout(
    model_type="gpt2",
    settings={
        "vocabulary": "vocab_size",
        "width": "n_embd",
        "heads": "n_head",
        "layers": "n_layer",
        "feed_forward": "n_inner",
        "activation": "activation_function",
        "max_length": "n_positions",
        "norm_epsilon": "layer_norm_epsilon",
        "dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
        "tie_output": "tie_word_embeddings",
    },
    fixed={
        "family": "decoder",
        "positions": "learned",
        "embedding_scale": False,
        "norm": "layer",
        "norm_order": "pre",
        "output_bias": False,
    },
    implied={
        "n_inner": None,
        "activation_function": "gelu_new",
        "n_positions": 1024,
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "tie_word_embeddings": True,
    },
    same={"embd_pdrop": "resid_pdrop"},
    defaults={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    weights={
        "table": ("wte",),
        "embedding.positions.table": ("wpe",),
        "decoder.blocks.{i}.attention.query_key_value": ("h.{i}.attn.c_attn",),
        "decoder.blocks.{i}.attention.output": ("h.{i}.attn.c_proj",),
        "decoder.blocks.{i}.residual.0.norm": ("h.{i}.ln_1",),
        "decoder.blocks.{i}.feed_forward.inward": ("h.{i}.mlp.c_fc",),
        "decoder.blocks.{i}.feed_forward.outward": ("h.{i}.mlp.c_proj",),
        "decoder.blocks.{i}.residual.1.norm": ("h.{i}.ln_2",),
        "decoder.norm": ("ln_f",),
        "heads.next_token": ("lm_head",),
    },
    prefix="transformer.",
    heads=("lm_head.",),
    forms={"c_attn": TRANSPOSED, "c_proj": TRANSPOSED, "c_fc": TRANSPOSED},
    architectures={frozenset(): "GPT2LMHeadModel"},
    ignored=("h.{i}.attn.bias", "h.{i}.attn.masked_bias"),  # causal masks, in files of older versions
)


def _plain_rope(theirs: dict[str, Any]) -> dict[str, Any]:
    rope = theirs.get("rope_parameters", {})
    scaling = theirs.get("rope_scaling", rope)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    return {**theirs, "rope_theta": rope.get("rope_theta", theirs["rope_theta"]), "rope_type": kind}


def _nested_rope(theirs: dict[str, Any]) -> dict[str, Any]:
    rope = {"rope_theta": theirs.pop("rope_theta"), "rope_type": theirs.pop("rope_type")}
    return {**theirs, "rope_parameters": rope}


LLAMA = Layout(
    model_type="llama",
    settings={
        "vocabulary": "vocab_size",
        "width": "hidden_size",
        "heads": "num_attention_heads",
        "head_width": "head_dim",
        "key_value_heads": "num_key_value_heads",
        "layers": "num_hidden_layers",
        "feed_forward": "intermediate_size",
        "activation": "hidden_act",
        "max_length": "max_position_embeddings",
        "norm_epsilon": "rms_norm_eps",
        "attention_dropout": "attention_dropout",
        "bias": "attention_bias",
        "tie_output": "tie_word_embeddings",
        "rotary_base": "rope_theta",
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
    implied={
        "head_dim": None,
        "num_key_value_heads": None,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "attention_dropout": 0.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "rope_theta": 10_000.0,
    },
    same={"mlp_bias": "attention_bias"},
    defaults={"rope_type": "default"},
    flatten=_plain_rope,
    unflatten=_nested_rope,
    weights={
        "table": ("embed_tokens",),
        "decoder.blocks.{i}.attention.query_key_value": (
            "layers.{i}.self_attn.q_proj",
            "layers.{i}.self_attn.k_proj",
            "layers.{i}.self_attn.v_proj",
        ),
        "decoder.blocks.{i}.attention.output": ("layers.{i}.self_attn.o_proj",),
        "decoder.blocks.{i}.residual.0.norm": ("layers.{i}.input_layernorm",),
        "decoder.blocks.{i}.feed_forward.inward": ("layers.{i}.mlp.gate_proj", "layers.{i}.mlp.up_proj"),
        "decoder.blocks.{i}.feed_forward.outward": ("layers.{i}.mlp.down_proj",),
        "decoder.blocks.{i}.residual.1.norm": ("layers.{i}.post_attention_layernorm",),
        "decoder.norm": ("norm",),
        "heads.next_token": ("lm_head",),
    },
    prefix="model.",
    heads=("lm_head.",),
    architectures={frozenset(): "LlamaForCausalLM"},
    ignored=("layers.{i}.self_attn.rotary_emb.inv_freq",),
)


def _side(ours: str, *, cross: bool) -> dict[str, tuple[str, ...]]:
    """One side of an encoder-decoder; `ours` is also their name for it."""
    block, layer = f"{ours}.blocks.{{i}}", f"{ours}.layers.{{i}}"
    rows = {
        f"{block}.attention.query_key_value": tuple(f"{layer}.self_attn.{p}_proj" for p in "qkv"),
        f"{block}.attention.output": (f"{layer}.self_attn.out_proj",),
        f"{block}.residual.0.norm": (f"{layer}.self_attn_layer_norm",),
        f"{block}.feed_forward.inward": (f"{layer}.fc1",),
        f"{block}.feed_forward.outward": (f"{layer}.fc2",),
        f"{block}.residual.{2 if cross else 1}.norm": (f"{layer}.final_layer_norm",),
    }
    if cross:
        rows |= {
            f"{block}.cross.query": (f"{layer}.encoder_attn.q_proj",),
            f"{block}.cross.key_value": tuple(f"{layer}.encoder_attn.{p}_proj" for p in "kv"),
            f"{block}.cross.output": (f"{layer}.encoder_attn.out_proj",),
            f"{block}.residual.1.norm": (f"{layer}.encoder_attn_layer_norm",),
        }
    return rows


_SEQ2SEQ_SETTINGS = {
    "vocabulary": "vocab_size",
    "width": "d_model",
    "heads": "encoder_attention_heads",
    "layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "feed_forward": "encoder_ffn_dim",
    "activation": "activation_function",
    "max_length": "max_position_embeddings",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "embedding_scale": "scale_embedding",
    "tie_output": "tie_word_embeddings",
}
_SEQ2SEQ_FIXED = {
    "family": "encoder_decoder",
    "norm": "layer",
    "norm_order": "post",
    "norm_epsilon": 1e-5,
    "segments": 0,
    "output_bias": True,
}
_SEQ2SEQ_IMPLIED = {
    "activation_function": "gelu",
    "max_position_embeddings": 1024,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "scale_embedding": False,
    "tie_word_embeddings": True,
}
_SEQ2SEQ_NEEDS = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
_SEQ2SEQ_SAME = {"decoder_attention_heads": "encoder_attention_heads", "decoder_ffn_dim": "encoder_ffn_dim"}
_SEQ2SEQ_WEIGHTS = {
    **_side("encoder", cross=False),
    **_side("decoder", cross=True),
    "heads.next_token.weight": ("lm_head.weight",),
    "heads.next_token.bias": ("final_logits_bias",),
}
_SEQ2SEQ_SINUSOIDS = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")
_SEQ2SEQ_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def _own_target(theirs: dict[str, Any]) -> dict[str, Any]:
    shared = theirs.get("share_encoder_decoder_embeddings", True)
    return {**theirs, "decoder_vocab_size": None if shared else theirs["decoder_vocab_size"] or theirs["vocab_size"]}


def _both_vocabularies(theirs: dict[str, Any]) -> dict[str, Any]:
    shared = theirs["decoder_vocab_size"] is None
    own = theirs["vocab_size"] if shared else theirs["decoder_vocab_size"]
    return {**theirs, "decoder_vocab_size": own, "share_encoder_decoder_embeddings": shared}


MARIAN = Layout(
    model_type="marian",
    settings={**_SEQ2SEQ_SETTINGS, "target_vocabulary": "decoder_vocab_size"},
    fixed={
        **_SEQ2SEQ_FIXED,
        "positions": "sinusoidal",
        "position_layout": "halves",
        "embedding_norm": False,
    },
    implied={**_SEQ2SEQ_IMPLIED, "decoder_vocab_size": None},
    same=_SEQ2SEQ_SAME,
    weights={
        **_SEQ2SEQ_WEIGHTS,
        "table": ("shared",),
        "target_table": ("decoder.embed_tokens",),
    },
    unshared={"table": ("encoder.embed_tokens",)},
    flatten=_own_target,
    unflatten=_both_vocabularies,
    prefix="model.",
    heads=("lm_head.", "final_logits_bias"),
    forms={"final_logits_bias": ONE_ROW},
    architectures={frozenset(): "MarianMTModel"},
    needs=_SEQ2SEQ_NEEDS,
    sinusoids=_SEQ2SEQ_SINUSOIDS,
    copies=_SEQ2SEQ_COPIES,
)

BART = Layout(
    model_type="bart",
    settings=_SEQ2SEQ_SETTINGS,
    fixed={**_SEQ2SEQ_FIXED, "positions": "learned", "embedding_norm": True, "target_vocabulary": None},
    implied=_SEQ2SEQ_IMPLIED,
    same=_SEQ2SEQ_SAME,
    weights={
        **_SEQ2SEQ_WEIGHTS,
        "table": ("shared",),
        "source.positions.table": ("encoder.embed_positions",),
        "source.norm": ("encoder.layernorm_embedding",),
        "target.positions.table": ("decoder.embed_positions",),
        "target.norm": ("decoder.layernorm_embedding",),
    },
    prefix="model.",
    heads=("lm_head.", "final_logits_bias"),
    forms={"embed_positions": AFTER_TWO, "final_logits_bias": ONE_ROW},
    architectures={frozenset(): "BartForConditionalGeneration"},
    needs=_SEQ2SEQ_NEEDS,
    copies=_SEQ2SEQ_COPIES,
)

PEGASUS = Layout(
    model_type="pegasus",
    settings=_SEQ2SEQ_SETTINGS,
    fixed={
        **_SEQ2SEQ_FIXED,
        "norm_order": "pre",
        "positions": "sinusoidal",
        "position_layout": "halves",
        "embedding_norm": False,
        "target_vocabulary": None,
    },
    implied=_SEQ2SEQ_IMPLIED,
    same=_SEQ2SEQ_SAME,
    weights={
        **_SEQ2SEQ_WEIGHTS,
        "table": ("shared",),
        "encoder.norm": ("encoder.layer_norm",),
        "decoder.norm": ("decoder.layer_norm",),
    },
    prefix="model.",
    heads=("lm_head.", "final_logits_bias"),
    forms={"final_logits_bias": ONE_ROW},
    architectures={frozenset(): "PegasusForConditionalGeneration"},
    needs=_SEQ2SEQ_NEEDS,
    sinusoids=_SEQ2SEQ_SINUSOIDS,
    copies=_SEQ2SEQ_COPIES,
)

LAYOUTS = {layout.model_type: layout for layout in (BERT, GPT2, LLAMA, MARIAN, PEGASUS, BART)}

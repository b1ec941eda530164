"""heedful's layers against `torch.nn`'s, with copied weights: same outputs, same gradients, in float64 to 1e-9."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful import TransformerConfig, build, record
from heedful.layers.block import Block
from heedful.layers.feed_forward import FeedForward
from heedful.layers.masks import UNMASKED, causal, padding
from heedful.layers.multi_head_attention import CrossAttention, SelfAttention
from heedful.layers.norms import layer_norm, rms_norm
from heedful.layers.residual import Residual

BATCH, TOKENS, SOURCE, WIDTH, HEADS, HIDDEN, LAYERS, VOCABULARY = 3, 6, 8, 12, 3, 20, 2, 30
LENGTHS, SOURCE_LENGTHS = torch.tensor([6, 4, 1]), torch.tensor([8, 5, 2])

RENAMED = {
    "self_attn.in_proj_": "attention.query_key_value.",
    "self_attn.out_proj.": "attention.output.",
    "multihead_attn.out_proj.": "cross.output.",
    "linear1.": "feed_forward.inward.",
    "linear2.": "feed_forward.outward.",
    "norm1.": "residual.0.norm.",
    "norm2.": "residual.1.norm.",
    "norm3.": "residual.2.norm.",
    "layers.": "blocks.",
}
each_order = pytest.mark.parametrize("order", ["post", "pre"])
each_activation = pytest.mark.parametrize("activation", ["relu", "gelu"])
# A stack warns that it cannot take its fast path; nn.Transformer has no option to disable that.
slow_path = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but:UserWarning")


def in_heedful_names(reference: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """torch.nn's weights, or their gradients, under heedful's names.

    Both keep W_q, W_k, W_v in one matrix; only our cross-attention, which reads two texts, keeps W_q apart.
    """
    heedful_module = {}
    for name, weight in reference.items():
        if "multihead_attn.in_proj_" in name:
            query, key_value = weight.split([WIDTH, 2 * WIDTH])
            heedful_module[renamed(name.replace("multihead_attn.in_proj_", "cross.query."))] = query
            heedful_module[renamed(name.replace("multihead_attn.in_proj_", "cross.key_value."))] = key_value
        else:
            heedful_module[renamed(name)] = weight
    return heedful_module


def renamed(name: str) -> str:
    for reference, heedful_module in RENAMED.items():
        name = name.replace(reference, heedful_module)
    return name


def shaken(module: Any) -> Any:
    """In float64, with every weight moved: fresh biases are 0 and gains 1, which would hide a mistake."""
    module = module.double().eval()
    for weight in module.parameters():
        weight.data.add_(torch.randn_like(weight), alpha=0.2)
    return module


def with_weights_of(reference: nn.Module, heedful_module: Any) -> Any:
    heedful_module.double().eval().load_state_dict(in_heedful_names(reference.state_dict()))
    return heedful_module


def vectors(tokens: int) -> tuple[Tensor, Tensor]:
    """The same vectors twice, so that each side accumulates its own gradients."""
    x = torch.randn(BATCH, tokens, WIDTH, dtype=torch.float64)
    return x.clone().requires_grad_(), x.clone().requires_grad_()


def backward(heedful_module: Tensor, reference: Tensor) -> None:
    """Backpropagate one random gradient through both."""
    gradient = torch.randn_like(reference)
    heedful_module.backward(gradient)
    reference.backward(gradient)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    actual = {name: weight.grad for name, weight in module.named_parameters()}
    return {name: gradient for name, gradient in actual.items() if gradient is not None}


def assert_same(heedful_module: Any, reference: Any) -> None:
    torch.testing.assert_close(heedful_module, reference, rtol=1e-9, atol=1e-9)


def assert_same_gradients(heedful_module: nn.Module, reference: nn.Module) -> None:
    assert len(gradients(heedful_module)) == len(list(heedful_module.parameters()))
    assert_same(gradients(heedful_module), in_heedful_names(gradients(reference)))


def hidden_keys(lengths: Tensor, tokens: int) -> Tensor:
    """Padding as a torch.nn mask: True = do not attend."""
    return torch.arange(tokens) >= lengths[:, None]


def later_keys() -> Tensor:
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
def test_self_attention_equals_nn_multihead_attention(padded: bool, in_order: bool) -> None:
    reference = nn.ModuleDict({"self_attn": shaken(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))})
    heedful_module = with_weights_of(reference, nn.ModuleDict({"attention": SelfAttention(WIDTH, HEADS)}))
    x, same_x = vectors(TOKENS)
    mask = (padding(LENGTHS, TOKENS) if padded else UNMASKED) & (causal() if in_order else UNMASKED)
    with record(heedful_module, "attention.weights") as recorded:
        output = heedful_module["attention"](x, mask)
    expected, weights = reference["self_attn"](
        same_x,
        same_x,
        same_x,
        key_padding_mask=hidden_keys(LENGTHS, TOKENS) if padded else None,
        attn_mask=later_keys() if in_order else None,
        average_attn_weights=False,
    )
    assert_same(output, expected)
    assert_same(recorded["attention.weights"], weights)
    backward(output, expected)
    assert_same(x.grad, same_x.grad)
    assert_same_gradients(heedful_module, reference)


@pytest.mark.parametrize("padded", [False, True])
def test_cross_attention_equals_nn_multihead_attention(padded: bool) -> None:
    reference = nn.ModuleDict({"multihead_attn": shaken(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))})
    heedful_module = with_weights_of(reference, nn.ModuleDict({"cross": CrossAttention(WIDTH, HEADS)}))
    (x, same_x), (memory, same_memory) = vectors(TOKENS), vectors(SOURCE)
    with record(heedful_module, "cross.weights") as recorded:
        output = heedful_module["cross"](x, memory, padding(SOURCE_LENGTHS, SOURCE) if padded else None)
    expected, weights = reference["multihead_attn"](
        same_x,
        same_memory,
        same_memory,
        key_padding_mask=hidden_keys(SOURCE_LENGTHS, SOURCE) if padded else None,
        average_attn_weights=False,
    )
    assert_same(output, expected)
    assert_same(recorded["cross.weights"], weights)
    backward(output, expected)
    assert_same((x.grad, memory.grad), (same_x.grad, same_memory.grad))
    assert_same_gradients(heedful_module, reference)


def heedful_block(order: Any, activation: Any, *, cross: bool = False) -> Block:
    return Block(
        SelfAttention(WIDTH, HEADS),
        FeedForward(WIDTH, HIDDEN, activation=activation),
        lambda _: Residual(WIDTH, order=order),
        CrossAttention(WIDTH, HEADS) if cross else None,
    )


def their_settings(order: str, activation: str = "relu") -> dict[str, Any]:
    return {
        "dim_feedforward": HIDDEN,
        "dropout": 0.0,
        "activation": activation,
        "batch_first": True,
        "norm_first": order == "pre",
    }


@each_order
@each_activation
def test_a_block_equals_nn_transformer_encoder_layer(order: str, activation: str) -> None:
    reference = shaken(nn.TransformerEncoderLayer(WIDTH, HEADS, **their_settings(order, activation)))
    heedful_module = with_weights_of(reference, heedful_block(order, activation))
    x, same_x = vectors(TOKENS)
    output = heedful_module(x, padding(LENGTHS, TOKENS))
    expected = reference(same_x, src_key_padding_mask=hidden_keys(LENGTHS, TOKENS))
    assert_same(output, expected)
    backward(output, expected)
    assert_same(x.grad, same_x.grad)
    assert_same_gradients(heedful_module, reference)


@each_order
@each_activation
def test_a_block_with_cross_attention_equals_nn_transformer_decoder_layer(order: str, activation: str) -> None:
    reference = shaken(nn.TransformerDecoderLayer(WIDTH, HEADS, **their_settings(order, activation)))
    heedful_module = with_weights_of(reference, heedful_block(order, activation, cross=True))
    (x, same_x), (memory, same_memory) = vectors(TOKENS), vectors(SOURCE)
    output = heedful_module(x, causal(), memory=memory, memory_mask=padding(SOURCE_LENGTHS, SOURCE))
    expected = reference(
        same_x,
        same_memory,
        tgt_mask=later_keys(),
        memory_key_padding_mask=hidden_keys(SOURCE_LENGTHS, SOURCE),
    )
    assert_same(output, expected)
    backward(output, expected)
    assert_same((x.grad, memory.grad), (same_x.grad, same_memory.grad))
    assert_same_gradients(heedful_module, reference)


def heedful_config(family: str, order: str, **settings: Any) -> TransformerConfig:
    """A whole model whose stacks read the bare token vectors, as those of torch.nn do."""
    return TransformerConfig(
        family=family,
        norm_order=order,
        vocabulary=VOCABULARY,
        width=WIDTH,
        heads=HEADS,
        layers=LAYERS,
        feed_forward=HIDDEN,
        positions="none",
        embedding_scale=False,
        **settings,
    )


def tokens(count: int) -> Tensor:
    return torch.randint(VOCABULARY, (BATCH, count))


@slow_path
@each_order
def test_encoder_equals_nn_transformer_encoder(order: str) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, **their_settings(order))
    norm = nn.LayerNorm(WIDTH) if order == "pre" else None
    reference = shaken(
        nn.ModuleDict(
            {"table": nn.Embedding(VOCABULARY, WIDTH), "encoder": nn.TransformerEncoder(layer, LAYERS, norm=norm)}
        )
    )
    heedful_module = with_weights_of(reference, build(heedful_config("encoder", order)))
    text = tokens(TOKENS)
    output = heedful_module(text, LENGTHS)
    expected = reference["encoder"](reference["table"](text), src_key_padding_mask=hidden_keys(LENGTHS, TOKENS))
    assert_same(output, expected)
    backward(output, expected)
    assert_same_gradients(heedful_module, reference)


@slow_path
@each_order
def test_decoder_equals_nn_transformer_encoder_with_a_causal_mask(order: str) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, **their_settings(order))
    norm = nn.LayerNorm(WIDTH) if order == "pre" else None
    reference = shaken(
        nn.ModuleDict(
            {"table": nn.Embedding(VOCABULARY, WIDTH), "decoder": nn.TransformerEncoder(layer, LAYERS, norm=norm)}
        )
    )
    heedful_module = with_weights_of(reference, build(heedful_config("decoder", order)))
    text = tokens(TOKENS)
    output = heedful_module(text)
    expected = reference["decoder"](reference["table"](text), mask=later_keys()) @ reference["table"].weight.T
    assert_same(output, expected)
    backward(output, expected)
    assert_same_gradients(heedful_module, reference)


class TheirTransformer(nn.Module):
    """`nn.Transformer` with the table and the tied output that it leaves to the user."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        full = nn.Transformer(
            WIDTH, HEADS, num_encoder_layers=LAYERS, num_decoder_layers=LAYERS + 1, **their_settings(order)
        )
        self.encoder, self.decoder = full.encoder, full.decoder
        self.whole = [full]  # in a list: its weights have their names already

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        hidden = hidden_keys(SOURCE_LENGTHS, SOURCE)
        states = self.whole[0](
            self.table(source),
            self.table(target),
            tgt_mask=later_keys(),
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )
        return states @ self.table.weight.T


@slow_path
@each_order
def test_encoder_decoder_with_a_final_norm_equals_nn_transformer(order: str) -> None:
    """`nn.Transformer` ends both stacks with a norm even where every block has just done so."""
    reference = shaken(TheirTransformer(order))
    heedful_module = with_weights_of(
        reference, build(heedful_config("encoder_decoder", order, decoder_layers=LAYERS + 1, final_norm=True))
    )
    source, target = tokens(SOURCE), tokens(TOKENS)
    output, expected = heedful_module(source, target, SOURCE_LENGTHS), reference(source, target)
    assert_same(output, expected)
    backward(output, expected)
    assert_same_gradients(heedful_module, reference)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 0.1])
def test_layer_norm_equals_nn_layer_norm(epsilon: float) -> None:
    reference = shaken(nn.LayerNorm(WIDTH, eps=epsilon))
    gain, bias = (weight.detach().clone().requires_grad_() for weight in (reference.weight, reference.bias))
    x, same_x = vectors(TOKENS)
    output, expected = layer_norm(x, gain, bias, epsilon), reference(same_x)
    assert_same(output, expected)
    backward(output, expected)
    assert_same((x.grad, gain.grad, bias.grad), (same_x.grad, reference.weight.grad, reference.bias.grad))


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 0.1])
def test_rms_norm_equals_nn_rms_norm(epsilon: float) -> None:
    reference = shaken(nn.RMSNorm(WIDTH, eps=epsilon))
    gain = reference.weight.detach().clone().requires_grad_()
    x, same_x = vectors(TOKENS)
    output, expected = rms_norm(x, gain, epsilon), reference(same_x)
    assert_same(output, expected)
    backward(output, expected)
    assert_same((x.grad, gain.grad), (same_x.grad, reference.weight.grad))

"""Who takes a training step in `training.py`: heedful through its Trainer, the peers through a plain loop.

A contender is a function that takes one whole step: forward, backward, clipping at 1, AdamW (fused), gradients set to
none. All have the same shapes, tied outputs, no dropout, and batches that start in the host's memory.

`nanogpt-like` is *not* nanoGPT: its code is not copied here. It is a model of the same shape written for this
comparison and trained by the same recipe (learned positions, pre-norm, no biases, exact GELU, fused AdamW with weight
decay on matrices only, bfloat16 autocast and torch.compile on a GPU).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], object]
Built = tuple[nn.Module, dict[str, Tensor]]
"""A model whose forward pass returns the loss, and its inputs."""

START, MASK, FIRST = 2, 4, 6
"""heedful's ids of the start and mask tokens, and the first ordinary id."""


class Cell(NamedTuple):
    """A model and a batch; `pairs` are read and written at `tokens` tokens each."""

    name: str
    family: str  # "pairs", "text" or "masked"
    rows: int
    tokens: int
    width: int
    heads: int
    layers: int
    vocabulary: int

    @property
    def step_tokens(self) -> int:
        return self.rows * self.tokens * (2 if self.family == "pairs" else 1)

    def flops(self) -> int:
        """FLOPs of a step: 6 per weight and token, 12 · width per query and key.

        Causal masking is not subtracted and recomputation not added, as in PaLM and nanoGPT.
        """
        tokens, d = self.rows * self.tokens, self.width
        output, pairs = self.vocabulary * d, self.family == "pairs"
        weights = (28 if pairs else 12) * d * d * self.layers
        scores = (3 if pairs else 1) * self.layers * self.rows * self.tokens**2
        scored = self.rows * self.masked_tokens if self.family == "masked" else tokens  # the positions that need logits
        return 6 * (weights * tokens + output * scored) + 12 * d * scores

    @property
    def masked_tokens(self) -> int:
        """Masked tokens per row: 15% (Devlin 2019)."""
        return round(0.15 * self.tokens)

    def ids(self) -> tuple[Tensor, Tensor]:
        """Random tokens: source and target, text and its next tokens, or text and positions to mask."""
        torch.manual_seed(0)
        first = min(FIRST, self.vocabulary - 1)
        if self.family == "pairs":
            source, target = torch.randint(first, self.vocabulary, (2, self.rows, self.tokens))
            return source, target
        if self.family == "masked":
            text = torch.randint(first, self.vocabulary, (self.rows, self.tokens))
            positions = torch.rand(self.rows, self.tokens).argsort(1)[:, : self.masked_tokens]
            return text, positions
        text = torch.randint(first, self.vocabulary, (self.rows, self.tokens + 1))
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def masked(text: Tensor, positions: Tensor) -> Tensor:
    """The text with mask tokens at these positions. (The 80/10/10 rule would not change the cost.)"""
    return text.scatter(1, positions, MASK)


def shifted(labels: Tensor) -> Tensor:
    """The decoder input for `labels`: shifted right."""
    return torch.cat([torch.full_like(labels[:, :1], START), labels[:, :-1]], dim=1)


# heedful -------------------------------------------------------------------------------------------------------------


@dataclass
class RepeatedBatch:
    """The same batch at every step."""

    repeated: Any
    labels_per_epoch: int = 0
    fixed_shape: bool = True
    unit: str = "tokens"

    def plan(self, epoch: int) -> list[np.ndarray]:
        return [np.zeros(0, np.int64)] * 1000

    def batch(self, epoch: int, indices: np.ndarray) -> Any:
        return self.repeated


def heedful_step(cell: Cell, device: str, compiled: bool) -> tuple[nn.Module, Step]:
    """A step of heedful's Trainer, compiled if the others are."""
    from heedful.data.masked_lm_batches import MaskedBatch
    from heedful.data.pair_dataset import PairBatch
    from heedful.data.text_dataset import TextBatch
    from heedful.device import select_device
    from heedful.models.build import build
    from heedful.models.presets import BERT, make_config
    from heedful.objectives.causal_lm_loss import CausalLMLoss
    from heedful.objectives.masked_lm_loss import MaskedLMLoss
    from heedful.objectives.objective import Objective
    from heedful.objectives.seq2seq_loss import Seq2SeqLoss
    from heedful.training.recipe import TrainingRecipe
    from heedful.training.reporting.events import Events
    from heedful.training.setup import configure_cpu_memory
    from heedful.training.trainer import Trainer

    size = {name: getattr(cell, name) for name in ("width", "heads", "layers", "vocabulary")} | {"dropout": 0.0}
    read, labels = cell.ids()
    design: dict[str, Any]
    objective: Objective
    if cell.family == "pairs":
        batch: Any = PairBatch(read, torch.full((cell.rows,), cell.tokens), shifted(labels), labels)
        design, objective = {"family": "encoder_decoder"}, Seq2SeqLoss()
    elif cell.family == "masked":
        batch = MaskedBatch(masked(read, labels), labels, read.gather(1, labels))
        design, objective = {**BERT, "vocabulary": cell.vocabulary, "tasks": ("masked_token",)}, MaskedLMLoss()
    else:
        batch = TextBatch(read, labels)
        design = {"family": "decoder", "positions": "learned", "max_length": cell.tokens, "activation": "gelu"}
        design |= {"norm_order": "pre", "embedding_scale": False, "bias": False}
        objective = CausalLMLoss()
    same: dict[str, Any] = {
        "steps": 10**9,
        "schedule": "constant",
        "warmup": 0,
        "learning_rate": 1e-4,
        "average": "none",
    }
    same |= {"betas": (0.9, 0.95), "weight_decay": 0.1, "clip": 1.0, "label_smoothing": 0.0}
    same |= {"precision": "bfloat16" if device == "cuda" else "float32"}
    if compiled:  # and on a GPU, steps of many small kernels become CUDA graphs
        same |= {"compile": True, "cuda_graphs": device == "cuda" and cell.family == "pairs"}
    model = build(make_config({**design, **size}))
    selected = select_device(device)
    recipe, batches = TrainingRecipe(**same), RepeatedBatch(batch)
    configure_cpu_memory(recipe, batches, selected)
    trainer = Trainer(model, objective, batches, recipe, seed=1, device=selected, events=Events())
    stream = trainer.batch_stream()
    return model, lambda: trainer.step(stream)


# The others ----------------------------------------------------------------------------------------------------------


class NanoBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before, self.between = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + F.dropout(self.out(attended.transpose(1, 2).reshape(rows, tokens, width)), dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.between(x)))), dropout)


class NanoLike(nn.Module):
    def __init__(self, cell: Cell, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.table = nn.Embedding(cell.vocabulary, cell.width)
        self.positions = nn.Embedding(cell.tokens, cell.width)
        self.blocks = nn.ModuleList(NanoBlock(cell.width, cell.heads, dropout) for _ in range(cell.layers))
        self.norm = nn.LayerNorm(cell.width, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                writes = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / ((2 * cell.layers) ** 0.5 if writes else 1.0))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.table(tokens) + self.positions.weight[: tokens.shape[1]]
        x = F.dropout(x, self.dropout if self.training else 0.0)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.table.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def nano_like(cell: Cell) -> Built:
    tokens, labels = cell.ids()
    return NanoLike(cell), {"tokens": tokens, "labels": labels}


def hugging_face(cell: Cell) -> Built:
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

    read, labels = cell.ids()
    if cell.family == "masked":
        shape = {"hidden_size": cell.width, "num_attention_heads": cell.heads, "num_hidden_layers": cell.layers}
        shape |= {"intermediate_size": 4 * cell.width, "vocab_size": cell.vocabulary}
        off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "attn_implementation": "sdpa"}
        targets = torch.full_like(read, -100).scatter(1, labels, read.gather(1, labels))
        return BertForMaskedLM(BertConfig(**shape, **off)), {"input_ids": masked(read, labels), "labels": targets}
    same: dict[str, Any] = {"vocab_size": cell.vocabulary, "attn_implementation": "sdpa", "use_cache": False}
    same |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": START}
    if cell.family == "text":
        same |= {"n_embd": cell.width, "n_head": cell.heads, "n_layer": cell.layers, "n_positions": cell.tokens}
        same |= {"activation_function": "gelu", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2LMHeadModel(GPT2Config(**same)), {"input_ids": read, "labels": read}  # it shifts them itself
    model = MarianMTModel(MarianConfig(**same, **marian_shape(cell.width, cell.heads, cell.layers, dropout=0.0)))
    return model, {"input_ids": read, "attention_mask": torch.ones_like(read), "labels": labels}


def marian_shape(width: int, heads: int, layers: int, dropout: float) -> dict[str, Any]:
    shape: dict[str, Any] = {"d_model": width, "dropout": dropout, "scale_embedding": True}
    shape |= {"activation_function": "relu", "max_position_embeddings": 512}
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_layers": layers, f"{side}_attention_heads": heads, f"{side}_ffn_dim": 4 * width}
    return shape


class TorchTranslator(nn.Module):
    """What a user of torch.nn writes around nn.Transformer."""

    positions: Tensor

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        size: dict[str, Any] = {
            "num_encoder_layers": cell.layers,
            "num_decoder_layers": cell.layers,
            "dim_feedforward": 4 * cell.width,
        }
        self.body = nn.Transformer(cell.width, cell.heads, **size, dropout=0.0, batch_first=True)
        self.body.encoder.enable_nested_tensor = False
        self.table, self.scale = nn.Embedding(cell.vocabulary, cell.width), cell.width**0.5
        angles = torch.arange(cell.tokens)[:, None] * 10_000 ** (-torch.arange(0, cell.width, 2) / cell.width)
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], dim=-1))
        self.register_buffer("later", nn.Transformer.generate_square_subsequent_mask(cell.tokens))

    def forward(self, source: Tensor, padding: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        states = self.body(
            self.table(source) * self.scale + self.positions[: source.shape[1]],
            self.table(target) * self.scale + self.positions[: target.shape[1]],
            tgt_mask=self.later,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return F.cross_entropy(F.linear(states, self.table.weight).flatten(0, 1), labels.flatten())


def torch_nn(cell: Cell) -> Built:
    source, labels = cell.ids()
    padding = torch.zeros_like(source, dtype=torch.bool)
    return TorchTranslator(cell), {"source": source, "padding": padding, "target": shifted(labels), "labels": labels}


PEERS: dict[str, Callable[[Cell], Built]] = {
    "nanogpt-like": nano_like,
    "torch.nn": torch_nn,
    "hugging face": hugging_face,
}
FIELDS = {"pairs": ("torch.nn", "hugging face"), "text": ("nanogpt-like", "hugging face"), "masked": ("hugging face",)}


def other_step(library: str, cell: Cell, device: str, compiled: bool) -> tuple[nn.Module, Step]:
    torch.manual_seed(1)
    model, call = PEERS[library](cell)
    model.to(device).train()
    if device == "cuda":
        call = {name: value.pin_memory() for name, value in call.items()}
    optimizer = adamw(model, learning_rate=1e-4, betas=(0.9, 0.95))
    forward = torch.compile(model) if compiled else model

    def step() -> None:
        moved = {name: value.to(device, non_blocking=True) for name, value in call.items()}
        with autocast(device):
            output = forward(**moved)
        loss = output if isinstance(output, Tensor) else output.loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return model, step


def adamw(model: nn.Module, learning_rate: float, betas: tuple[float, float]) -> torch.optim.AdamW:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": 0.1},
        {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True)


def autocast(device: str) -> AbstractContextManager[Any]:
    return torch.autocast("cuda", torch.bfloat16) if device == "cuda" else nullcontext()


def contenders(cell: Cell) -> list[str]:
    """The libraries that run this cell, heedful first."""
    return ["heedful", *FIELDS[cell.family]]


def contend(library: str, cell: Cell, device: str, compiled: bool) -> tuple[int, Step]:
    """The number of trainable parameters of a library's model, and its training step."""
    model, step = (
        heedful_step(cell, device, compiled) if library == "heedful" else other_step(library, cell, device, compiled)
    )
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad), step

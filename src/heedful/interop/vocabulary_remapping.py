"""Renumber an imported vocabulary so that our six special tokens come first (E1).

Decoding identifies START and END by their ids. The rows of an imported model's embedding tables are reordered together
with its tokenizer, so its outputs do not change.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.models.build import Model, build
from heedful.text.special_tokens import END, SPECIAL_TOKENS, START, UNKNOWN
from heedful.text.tokenizer import Tokenizer
from heedful.untrusted_files import parse_json_object, read_bounded

ABSENT_LOGIT = -6e4
"""Logit of a special token that the imported model does not have: probability 0."""
Order = list[int | None]
"""The imported id of each of our ids; None: the imported vocabulary has no such token."""


def read_special_ids(folder: Path, tokenizer: Tokenizer) -> Order:
    """Read the imported ids of PAD, UNKNOWN, START, END, MASK and SEPARATOR from the folder's configuration files."""
    config = _read(folder / "generation_config.json") | _read(folder / "config.json")
    names = _read(folder / "special_tokens_map.json") | _read(folder / "tokenizer_config.json")
    ids = {token: index for index, token in enumerate(tokenizer.tokens)}

    def by_name(role: str) -> int | None:
        name = names.get(f"{role}_token", "")
        return ids.get(name["content"] if isinstance(name, dict) else name)

    def by_id(role: str) -> int | None:
        index = config.get(f"{role}_token_id")
        index = index[0] if isinstance(index, list) else index
        return by_name(role) if index is None else index

    is_encoder_decoder = config.get("is_encoder_decoder", "encoder_layers" in config)
    start = by_id("decoder_start" if is_encoder_decoder else "bos")
    return [by_id("pad"), by_name("unk"), start, by_id("eos"), by_name("mask"), by_name("sep")]


def _read(file: Path) -> dict[str, Any]:
    try:
        content = parse_json_object(read_bounded(file), file)
    except FileNotFoundError:
        return {}
    return {key: value for key, value in content.items() if value is not None}


def vocabulary_order(special_ids: Sequence[int | None], size: int) -> Order:
    """Order special tokens first, each once (END before START: elsewhere one token may be both), then the rest."""
    first: Order = [None] * len(SPECIAL_TOKENS)
    for index in (END, *range(len(first))):
        if special_ids[index] not in first:
            first[index] = special_ids[index]
    return [*first, *(token for token in range(size) if token not in first)]


@torch.no_grad()
def reorder_vocabulary(model: Model, order: Order, start: int | None) -> Model:
    """Return the model with its vocabulary in this order; `start`: the imported id that starts a text."""
    rows = torch.tensor([0 if token is None else token for token in order])
    absent = torch.tensor([token is None for token in order])
    weights: dict[str, Tensor] = dict(model.state_dict())
    bias = weights.get("heads.next_token.bias", torch.zeros(model.config.vocabulary))
    for name in ("table.weight", "heads.next_token.weight"):
        if name in weights:
            weights[name] = weights[name][rows]
    if start is not None:
        weights["table.weight"][START] = model.table.weight[start]
    if absent.any() or "heads.next_token.bias" in weights:
        weights["heads.next_token.bias"] = torch.where(absent, ABSENT_LOGIT, bias[rows])
    has_bias = "heads.next_token.bias" in weights
    with torch.device("meta"):
        reordered: Model = build(model.config.with_changes(vocabulary=len(order), output_bias=has_bias))
    reordered.load_state_dict(weights, assign=True)
    return reordered.eval()


def reorder_tokenizer(tokenizer: Tokenizer, order: Order) -> Tokenizer:
    """Return the tokenizer with its ids in this order, and our special tokens where it had none."""
    content = json.loads(tokenizer.to_json())
    model, tokens = content["model"], tokenizer.tokens
    added_ids = {index: _unique_name(SPECIAL_TOKENS[index], tokens) for index, old in enumerate(order) if old is None}
    new_ids = {tokens[old]: index for index, old in enumerate(order) if old is not None and old < len(tokens)}
    by_id = sorted([*added_ids.items(), *((index, token) for token, index in new_ids.items())])
    vocabulary = {token: index for index, token in by_id}
    if isinstance(model["vocab"], dict):  # with the special tokens, or the library numbers them itself
        model["vocab"] = vocabulary
    else:  # a list of [token, score] in the order of the ids
        scores = dict(map(tuple, model["vocab"]))
        model["vocab"] = [[token, scores.get(token, 0.0)] for token in vocabulary]
        model["unk_id"] = UNKNOWN
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{**token, "id": new_ids[token["content"]]} for token in content["added_tokens"]]
    added += [{"id": index, "content": name, **flags} for index, name in added_ids.items()]
    content["added_tokens"] = sorted(added, key=lambda token: token["id"])
    return Tokenizer.from_json(json.dumps(content))


def _unique_name(name: str, tokens: Sequence[str]) -> str:
    """Return the name, bracketed until no other token has it."""
    return _unique_name(f"<{name}>", tokens) if name in tokens else name

"""Someone else's vocabulary in our numbering: the six special tokens first (E1).

Every search here knows START and END by their ids. A model that was taught with others is given ours, and its tables
are put in the same order: it computes what it computed, and its tokenizer spells what it spelt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.errors import CheckpointError
from heedful.models.build import build
from heedful.text.special_tokens import END, SPECIAL_TOKENS, START, UNKNOWN
from heedful.text.tokenizer import Tokenizer

ABSENT = -6e4
"""The logit of a token they do not have: no probability is left for it."""
Order = list[int | None]
"""Their id for each id of ours; None: they have no such token."""


def read_special_ids(folder: Path, tokenizer: Tokenizer) -> Order:
    """Which of their tokens pads, is unknown, starts, ends, masks and separates, as far as the folder says."""
    described = _read(folder / "generation_config.json") | _read(folder / "config.json")
    spelt = _read(folder / "special_tokens_map.json") | _read(folder / "tokenizer_config.json")
    places = {name: token for token, name in enumerate(tokenizer.tokens)}

    def named(role: str) -> int | None:
        name = spelt.get(f"{role}_token", "")
        return places.get(name["content"] if isinstance(name, dict) else name)

    def said(role: str) -> int | None:
        found = described.get(f"{role}_token_id")
        found = found[0] if isinstance(found, list) else found
        return named(role) if found is None else found

    start = said("decoder_start") if described.get("is_encoder_decoder", "encoder_layers" in described) else said("bos")
    return [said("pad"), named("unk"), start, said("eos"), named("mask"), named("sep")]


def _read(file: Path) -> dict[str, Any]:
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None
    return {key: value for key, value in read.items() if value is not None}


def vocabulary_order(roles: Sequence[int | None], size: int) -> Order:
    """Tokens with a role first, each once (END before all: elsewhere one token may start and end), then the others."""
    first: Order = [None] * len(SPECIAL_TOKENS)
    for place in (END, *range(len(first))):
        if roles[place] not in first:
            first[place] = roles[place]
    return [*first, *(token for token in range(size) if token not in first)]


@torch.no_grad()
def reorder_vocabulary(model: Any, order: Order, start: int | None) -> Any:
    """The same model with its vocabulary in this order; `start`: their token that a text starts with."""
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
        weights["heads.next_token.bias"] = torch.where(absent, ABSENT, bias[rows])
    biased = "heads.next_token.bias" in weights
    with torch.device("meta"):
        ours = build(model.config.with_changes(vocabulary=len(order), output_bias=biased))
    ours.load_state_dict(weights, assign=True)
    return ours.eval()


def reorder_tokenizer(tokenizer: Tokenizer, order: Order) -> Tokenizer:
    """The same tokenizer with its ids in this order, and our names for the special tokens it did not have."""
    described = json.loads(tokenizer.to_json())
    model, names = described["model"], tokenizer.tokens
    new = {ours: _free(SPECIAL_TOKENS[ours], names) for ours, theirs in enumerate(order) if theirs is None}
    places = {names[theirs]: ours for ours, theirs in enumerate(order) if theirs is not None and theirs < len(names)}
    whole = {name: token for token, name in sorted([*new.items(), *((ours, name) for name, ours in places.items())])}
    if isinstance(model["vocab"], dict):  # special ones among them: the library numbers others as it likes
        model["vocab"] = whole
    else:  # a list in the order of the ids, with a weight each
        weights = dict(map(tuple, model["vocab"]))
        model["vocab"] = [[name, weights.get(name, 0.0)] for name in whole]
        model["unk_id"] = UNKNOWN
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{**token, "id": places[token["content"]]} for token in described["added_tokens"]]
    added += [{"id": ours, "content": name, **plain} for ours, name in new.items()]
    described["added_tokens"] = sorted(added, key=lambda token: token["id"])
    return Tokenizer.from_json(json.dumps(described))


def _free(name: str, names: Sequence[str]) -> str:
    """A name nothing else has: theirs may use ours for something else."""
    return _free(f"<{name}>", names) if name in names else name

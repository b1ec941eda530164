"""Someone else's vocabulary in our numbering: the six special tokens first (E1).

Every search here knows START and END by their ids. A model that was taught with others is given new ids, its tables
new rows in the same order: it computes what it computed, and its tokenizer spells what it spelt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.errors import CheckpointError
from heedful.models.build import build
from heedful.text.special import END, SPECIAL_TOKENS
from heedful.text.tokenizer import Tokenizer

ABSENT = -6e4
"""The logit of a row that stands for nothing there: no probability is left for it."""
Order = list[int | None]
"""For each id of ours theirs; None: they have no such token."""


def our_order(roles: Sequence[int | None], size: int) -> Order:
    """Tokens with a role first, each once (END before all: some let one token begin and end), the others as they were."""
    first: Order = [role if role != roles[END] or place == END else None for place, role in enumerate(roles)]
    first = [role if role not in first[:place] else None for place, role in enumerate(first)]
    return [*first, *(token for token in range(size) if token not in first)]


@torch.no_grad()
def renumbered(model: Any, order: Order, begins: int | None) -> Any:
    """The same model with its vocabulary in this order; `begins`: their token that a text starts with."""
    rows = torch.tensor([0 if token is None else token for token in order])
    absent = torch.tensor([token is None for token in order])
    config = model.config.with_changes(vocabulary=len(order), output_bias=True)
    with torch.device("meta"):
        ours = build(config)
    weights: dict[str, Tensor] = dict(model.state_dict())
    bias = weights.get("heads.next_token.bias", torch.zeros(model.config.vocabulary))
    for name in ("table.weight", "heads.next_token.weight"):
        if name in weights:
            weights[name] = weights[name][rows]
    if begins is not None:
        weights["table.weight"][2] = model.table.weight[begins]
    weights["heads.next_token.bias"] = torch.where(absent, ABSENT, bias[rows])
    ours.load_state_dict(weights, assign=True)
    return ours.eval()


def renumbered_tokenizer(tokenizer: Tokenizer, order: Order) -> Tokenizer:
    """The same tokenizer with its ids in this order, and our names for the special tokens it did not have."""
    described = json.loads(tokenizer.to_json())
    places = {theirs: ours for ours, theirs in enumerate(order) if theirs is not None}
    model, added = described["model"], described["added_tokens"]
    new = [name for name, theirs in zip(SPECIAL_TOKENS, order, strict=False) if theirs is None]
    taken = {*tokenizer.tokens} & {*new}
    if taken:
        raise CheckpointError(f"the vocabulary has {', '.join(sorted(taken))}, but config.json gives no such role")
    if isinstance(model["vocab"], dict):
        model["vocab"] = {name: places[token] for name, token in model["vocab"].items()}
    else:
        raise CheckpointError(f"a tokenizer of type {model['type']} cannot be renumbered")
    for token in added:
        token["id"] = places[token["id"]]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added += [{"id": SPECIAL_TOKENS.index(name), "content": name, **plain} for name in new]
    described["added_tokens"] = sorted(added, key=lambda token: token["id"])
    return Tokenizer.from_json(json.dumps(described))

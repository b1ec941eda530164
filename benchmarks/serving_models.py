"""Models for the serving benchmark: random weights whose translations are about as long as their sources.

Speed does not depend on what a model says, but on how long it talks. END's row of the output layer is fitted to
(target position − source length), which a random decoder's states contain, and scaled until END wins where that is
positive.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import heedful
from heedful.data.collate import pad_sequences
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.loading import wrap_model
from heedful.text.special_tokens import END, START
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

SHAPES: dict[str, dict[str, Any]] = {
    "multi30k": {"width": 192, "layers": 4, "heads": 6, "vocabulary": 8_000},
    "base": {"width": 512, "layers": 6, "heads": 8, "vocabulary": 32_000},
    "gpt2-small": {"width": 256, "layers": 4, "heads": 4, "vocabulary": 8_000},
}
FITTED_TEXTS, TRIED_TEXTS = 256, 48


def make_model(shape: str, corpus: list[str], folder: Path) -> None:
    """Write a translator or language model of this shape, with a tokenizer trained on the corpus."""
    settings = {**SHAPES[shape], "dropout": 0.0, "max_length": 1024}
    tokenizer = Tokenizer.train(corpus, TokenizerConfig(vocabulary=settings["vocabulary"]))
    settings["vocabulary"] = len(tokenizer)
    torch.manual_seed(0)
    if shape.startswith("gpt2"):
        model = heedful.build("gpt2", **settings).eval()
    else:
        model = heedful.build("paper-base", tie_output=False, **settings).eval()
        fit_end(model, tokenizer.encode(corpus[:FITTED_TEXTS]))
    wrap_model(model, (tokenizer,)).save(folder)


@torch.no_grad()
def fit_end(model: Any, sources: list[list[int]]) -> None:
    """Let END win once a translation is as long as its source."""
    generator = torch.Generator().manual_seed(0)
    states, remaining = [], []
    for source in sources:
        tokens, lengths = pad_sequences([source], end=END)
        steps = 2 * len(source) + 4
        target = torch.randint(6, model.config.vocabulary, (1, steps), generator=generator)
        target[:, 0] = START
        states.append(model.teacher_forced_states(tokens, target, lengths)[0])
        remaining.append(torch.arange(steps) - float(len(source)))
    x, y = torch.cat(states).double(), torch.cat(remaining).double()
    ridge = 1e-3 * len(x) * torch.eye(x.shape[1], dtype=torch.float64)
    direction = torch.linalg.solve(x.T @ x + ridge, x.T @ y).float()
    weight = model.heads.next_token.weight
    weight[END] = 0
    best = torch.cat([model.apply_head("next_token", each[None])[0].max(-1).values for each in states])
    after = (y >= 1) & (y <= 3)
    scale = float(best[after].median()) / float((x.float() @ direction)[after].median())
    request = SearchRequest(sources[:TRIED_TEXTS])
    read = sum(map(len, request.texts))

    def excess(factor: float) -> float:
        weight[END] = factor * scale * direction
        written = sum(len(hypotheses[0].tokens) for hypotheses in TorchBackend(model).translate(request))
        return abs(written / read - 1)

    excess(min((1.0, 1.5, 2.0, 3.0, 4.0, 6.0), key=excess))

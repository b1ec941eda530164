"""A model over a column of a Ray dataset: corpora larger than one machine (`pip install heedful[ray]`).

dataset = ray.data.read_text("corpus.en").map_batches(
    ModelOnColumn, fn_constructor_kwargs={"folder": "/models/translate-1"}, concurrency=8, batch_size=1024
)
dataset.write_parquet("translated")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from heedful.errors import UsageError
from heedful.loading import load

OUTPUTS = {"translate": "translation", "generate": "continuation", "classify": "label", "embed": "vector"}
"""Tasks that a column of texts is enough for, and the column that each adds."""


class ModelOnColumn:
    """A class for `map_batches`: loads a model once a worker, and adds its answers to each batch as a column.

    `column`: the texts. `task`: of OUTPUTS; None: the model's own. `options`: of `translate`, `generate`, … .
    """

    def __init__(
        self, folder: str | Path, *, column: str = "text", task: str | None = None, device: str = "auto", **options: Any
    ) -> None:
        self.trained: Any = load(folder, device=device)
        self.task = task or ("embed" if self.trained.task == "encode" else self.trained.task)
        if self.task not in OUTPUTS or not hasattr(self.trained, self.task):
            raise UsageError(f"{folder} is {self.trained.kind}, which has no answers for a column of texts")
        self.column, self.options = column, options

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self.column not in batch:
            raise UsageError(f"the dataset has no column '{self.column}'; it has {', '.join(batch)}")
        texts = [str(text) for text in batch[self.column]]
        answers = getattr(self.trained, self.task)(texts, **self.options)
        if self.task == "classify":
            answers = [answer.label for answer in answers]
        return {**batch, OUTPUTS[self.task]: np.asarray(answers, dtype=np.float32 if self.task == "embed" else object)}

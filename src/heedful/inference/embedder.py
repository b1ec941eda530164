"""Embedder: an encoder without a task head, or a table of word vectors."""

from __future__ import annotations

from heedful.inference.trained_model import TrainedModel


class Embedder(TrainedModel):
    """Embed texts (`embed`, `iter_embed`) and look up word vectors (`words`).

    Every other trained model can do this too; an Embedder has no further task.
    """

    kind = "an embedder"

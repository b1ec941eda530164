"""Generation and loss that all models trained with heedful share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import StoppingCriteria
from transformers.modeling_outputs import BaseModelOutput


class HeedfulSeq2SeqGeneration:
    """The part of `generate` for encoder-decoders that `GenerationMixin` lacks; the method `encode` reads a source."""

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The start token, then all labels but the last."""
        start = labels.new_full((len(labels), 1), self.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1]], 1).masked_fill(labels == -100, self.config.pad_token_id)

    def get_encoder(self, modality: str | None = None) -> SourceEncoder:
        return SourceEncoder(self)

    def generate(self, inputs: Tensor | None = None, **options: Any) -> Any:
        """Generate as transformers does, by default up to heedful's limit: twice the source's length and 20 tokens."""
        source = options.get("input_ids") if inputs is None else inputs
        if source is not None and not {"max_length", "max_new_tokens", "generation_config"} & options.keys():
            mask = options.get("attention_mask")
            limits = 2 * (torch.ones_like(source) if mask is None else mask).sum(1) + 20
            if getattr(self.config, "positions", None) == "learned":
                limits = limits.clamp(max=self.config.max_position_embeddings)
            options["max_new_tokens"] = int(limits.max())
            options["stopping_criteria"] = [*options.get("stopping_criteria", ()), LengthLimits(limits)]
        return super().generate(inputs, **options)


class SourceEncoder:
    """The encoder of an encoder-decoder, as `generate` calls it."""

    def __init__(self, model: HeedfulSeq2SeqGeneration) -> None:
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any) -> BaseModelOutput:
        return BaseModelOutput(self.model.encode(input_ids, attention_mask))

    __call__ = forward


class LengthLimits(StoppingCriteria):
    """Ends each row of a batch at a limit of its own."""

    def __init__(self, limits: Tensor) -> None:
        self.limits = limits

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Tensor:
        limits = self.limits.repeat_interleave(len(input_ids) // len(self.limits))
        return input_ids.shape[1] - 1 >= limits.to(input_ids.device)


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy; labels of −100 do not count."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

"""Masked-token loss and accuracy, and next-sentence accuracy (T4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import functional as F

from heedful.data.batching import Batches, evenly_spaced_batches
from heedful.data.next_sentence import masked_batches
from heedful.data.text_dataset import encode_sentences
from heedful.data.token_store import Sequences
from heedful.evaluation.text_metrics import safe_exp
from heedful.inference.trained_model import TrainedModel
from heedful.models.encoder import Encoder
from heedful.objectives.masked_lm_loss import encode_batch, states_at
from heedful.objectives.objective import to_device
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.special_tokens import PAD

BATCH_TOKENS, MAX_CONTEXT, MASK_RATE = 4096, 512, 0.15


@torch.inference_mode()
def score_masked_tokens(
    model: Encoder, batches: Batches, device: torch.device, *, limit: int | None = None
) -> dict[str, Any]:
    """Score all batches of the first epoch, or evenly spaced ones with about `limit` masked tokens.

    The loss is in nats per masked token; next-sentence accuracy (0.5 is chance) if the model has that head.
    """
    nats, correct, tokens, correct_pairs, pairs = 0.0, 0, 0, 0, 0
    for indices in evenly_spaced_batches(batches, limit):
        batch = to_device(batches.batch(0, indices), device)
        states = encode_batch(model, batch)
        logits = model.apply_head("masked_token", states_at(states, batch.positions)).float().flatten(0, 1)
        labels = batch.labels.flatten()
        nats += float(F.cross_entropy(logits, labels, ignore_index=PAD, reduction="sum"))
        correct += int(((logits.argmax(-1) == labels) & (labels != PAD)).sum())
        tokens += int((labels != PAD).sum())
        if batch.next_sentence_labels is not None:
            predicted = model.apply_head("next_sentence", states, batch.lengths).argmax(-1)
            correct_pairs += int((predicted == batch.next_sentence_labels).sum())
            pairs += len(predicted)
    loss = nats / max(1, tokens)
    scores = {"loss": loss, "perplexity": safe_exp(loss), "accuracy": correct / max(1, tokens), "tokens": tokens}
    return scores | ({"next_sentence_accuracy": correct_pairs / pairs, "pairs": pairs} if pairs else {})


def evaluate_masked_lm(trained: TrainedModel, text: Sequences, *, share: float = 1.0) -> dict[str, Any]:
    """Evaluate a text or an evenly spaced share of it; the seed is fixed, so the same tokens are masked every time."""
    batches = masked_batches(
        text,
        trained.tokenizers[0],
        next_sentence=predicts_next_sentence(trained),
        context=min(MAX_CONTEXT, trained.model.config.max_length),
        tokens=BATCH_TOKENS,
        seed=0,
        shuffle=False,
        share=MASK_RATE,
    )
    limit = round(share * batches.labels_per_epoch)
    return {**score_masked_tokens(trained.model, batches, trained.device, limit=limit), "mask_rate": MASK_RATE}


def predicts_next_sentence(trained: TrainedModel) -> bool:
    """Whether the model has a next-sentence head."""
    return "next_sentence" in trained.model.config.tasks


def encode_documents(trained: TrainedModel, pieces: Iterable[tuple[str, bool]]) -> Sequences:
    """Encode running text: sentence by sentence for a model with a next-sentence head, else in the chunks given."""
    tokenizer, chunks = trained.tokenizers[0], list(pieces)
    end = SpecialTokenTemplate.from_tokenizer(tokenizer).end
    texts = [text for text, _ in chunks]
    encoded = encode_sentences(texts, tokenizer) if predicts_next_sentence(trained) else tokenizer.encode(texts)
    return Sequences.from_lists([[*ids, end] if last else ids for (_, last), ids in zip(chunks, encoded, strict=True)])

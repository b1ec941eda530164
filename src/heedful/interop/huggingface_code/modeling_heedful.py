"""Transformers trained with heedful, for `trust_remote_code=True`: encoders, decoders and encoder-decoders.

Needs torch and transformers only. Names of modules and weights are heedful's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
)

from .configuration_heedful import HeedfulConfig
from .generation_heedful import HeedfulSeq2SeqGeneration, token_loss
from .layers_heedful import HeedfulEmbedding, HeedfulHeads, HeedfulStack


class HeedfulPreTrainedModel(PreTrainedModel):
    """Token tables, stacks and heads of a configuration; the classes below apply one of the heads."""

    config_class = HeedfulConfig
    _supports_sdpa = True
    _no_split_modules = ("HeedfulBlock",)

    def __init__(self, config: HeedfulConfig) -> None:
        super().__init__(config)
        self.table = nn.Embedding(config.vocabulary, config.width)
        self.target_table = nn.Embedding(config.target_vocabulary, config.width) if config.target_vocabulary else None
        if config.family == "encoder_decoder":
            self.source = HeedfulEmbedding(config, config.segments)
            self.target = HeedfulEmbedding(config, 0)
            self.encoder = HeedfulStack(config, config.layers, causal=False)
            self.decoder = HeedfulStack(config, config.decoder_layers, causal=True, cross=True)
        else:
            self.embedding = HeedfulEmbedding(config, config.segments)
            stack = HeedfulStack(config, config.layers, causal=config.family == "decoder")
            setattr(self, config.family, stack)
        self.heads = HeedfulHeads(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.table

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.table = value

    def encode(self, tokens: Tensor, attention_mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """The last states of the encoder."""
        embedding = self.source if self.config.family == "encoder_decoder" else self.embedding
        real = torch.ones_like(tokens, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        positions = position_ids(real)
        return self.encoder(embedding(self.table, tokens, positions, segments), real, positions)

    def decode(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """The last states of the decoder after these tokens, which follow those in the KV cache."""
        is_seq2seq = self.config.family == "encoder_decoder"
        embedding, table = (
            (self.target, self.target_table or self.table) if is_seq2seq else (self.embedding, self.table)
        )
        past = 0 if cache is None else cache.get_seq_length()
        every = tokens.new_ones(len(tokens), past + tokens.shape[1], dtype=torch.bool)
        real = every if attention_mask is None else attention_mask.bool()
        positions = position_ids(real)[:, past:]
        x = embedding(table, tokens, positions)
        if memory is not None:
            memory_mask = memory.new_ones(memory.shape[:2]) if memory_mask is None else memory_mask
            memory_mask = memory_mask.bool()[:, None, None, :]
        return self.decoder(x, real, positions, cache, memory, memory_mask)

    def states(self, tokens: Tensor, attention_mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """The last states of an encoder or decoder, or of an encoder-decoder's encoder."""
        if self.config.family == "decoder":
            return self.decode(tokens, attention_mask)
        return self.encode(tokens, attention_mask, segments if self.config.segments > 1 else None)

    def next_token_logits(self, states: Tensor) -> Tensor:
        return self.heads["next_token"](states, self.target_table or self.table)


def position_ids(real: Tensor) -> Tensor:
    """0, 1, 2 … for the real tokens of each row, wherever the padding is."""
    return (real.cumsum(1) - 1).clamp(min=0)


class HeedfulModel(HeedfulPreTrainedModel):
    """Hidden states: of a text, or of an encoder-decoder's source."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **options: Any,
    ) -> BaseModelOutput:
        return BaseModelOutput(self.states(input_ids, attention_mask, token_type_ids))


class HeedfulForCausalLM(HeedfulPreTrainedModel, GenerationMixin):
    """Logits of the token after each position."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool = True,
        logits_to_keep: int = 0,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        if past_key_values is None and use_cache and not self.training:
            past_key_values = DynamicCache()
        states = self.decode(input_ids, attention_mask, past_key_values)
        logits = self.next_token_logits(states[:, -logits_to_keep:])
        loss = None if labels is None else token_loss(logits[:, :-1], labels[:, 1:])
        return CausalLMOutputWithPast(loss, logits, past_key_values)


class HeedfulForSeq2SeqLM(HeedfulSeq2SeqGeneration, HeedfulPreTrainedModel, GenerationMixin):
    """Logits of the target token after each position, given a source."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool = True,
        **options: Any,
    ) -> Seq2SeqLMOutput:
        memory = self.encode(input_ids, attention_mask) if encoder_outputs is None else encoder_outputs[0]
        if past_key_values is None and use_cache and not self.training:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        states = self.decode(decoder_input_ids, decoder_attention_mask, past_key_values, memory, attention_mask)
        logits = self.next_token_logits(states)
        loss = None if labels is None else token_loss(logits, labels)
        return Seq2SeqLMOutput(loss, logits, past_key_values, encoder_last_hidden_state=memory)


class HeedfulForMaskedLM(HeedfulPreTrainedModel):
    """Logits of the token at each masked position."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> MaskedLMOutput:
        states = self.states(input_ids, attention_mask, token_type_ids)
        logits = self.heads["masked_token"](states, self.table)
        return MaskedLMOutput(None if labels is None else token_loss(logits, labels), logits)


class HeedfulForSequenceClassification(HeedfulPreTrainedModel):
    """Logits of the classes of a text, or of a pair of texts."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> SequenceClassifierOutput:
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        pooled = self.heads["pooled"](self.states(input_ids, real, token_type_ids), real)
        logits = self.heads["sequence_class"]["classes"](pooled)
        loss = None
        if labels is not None:
            multi_label = self.config.problem_type == "multi_label_classification"
            loss = (F.binary_cross_entropy_with_logits if multi_label else F.cross_entropy)(logits, labels)
        return SequenceClassifierOutput(loss, logits)


class HeedfulForQuestionAnswering(HeedfulPreTrainedModel):
    """Logits of the first and the last token of the answer; at the start token, of there being none."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **options: Any,
    ) -> QuestionAnsweringModelOutput:
        states = self.states(input_ids, attention_mask, token_type_ids)
        start, end = self.heads["answer_span"]["ends"](states).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = (F.cross_entropy(start, start_positions) + F.cross_entropy(end, end_positions)) / 2
        return QuestionAnsweringModelOutput(loss, start, end)

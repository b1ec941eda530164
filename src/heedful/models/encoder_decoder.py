"""Encoder-decoder: encode a source text, decode a target text (F1)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from heedful.errors import UsageError
from heedful.layers.block import position_ids
from heedful.layers.kv_cache import KVCache
from heedful.layers.masks import Mask, padding
from heedful.models.model_config import TransformerConfig
from heedful.models.token_inputs import check_same_batch, check_tokens
from heedful.models.transformer import Transformer, initialize, make_embedding, make_stack
from heedful.shapes import Float, Int


class EncoderOutput(NamedTuple):
    """The encoder's states and padding mask: the memory of cross-attention."""

    states: Float[Tensor, "batch keys width"]
    mask: Mask | None


class EncoderDecoder(Transformer):
    """An encoder, and a decoder with cross-attention to the encoder's last states        Vaswani 2017, 3.1 · F1, B5

    Training calls `teacher_forced_states`; generation calls `start` once, then `extend` for each token.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        if config.target_vocabulary is not None:
            self.target_table = nn.Embedding(config.target_vocabulary, config.token_width)
        self.source = make_embedding(config)
        self.target = make_embedding(config.with_changes(segments=0))
        self.encoder = make_stack(config, "encoder", config.layers)
        self.decoder = make_stack(config, "decoder", config.decoder_layers or config.layers, cross=True)
        initialize(self)

    def forward(
        self,
        source: Int[Tensor, "batch source_tokens"],
        target: Int[Tensor, "batch target_tokens"],
        source_lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch target_tokens vocabulary"]:
        """Teacher forcing (T1): logits for the token after each target position, all at once."""
        return self.apply_head("next_token", self.teacher_forced_states(source, target, source_lengths))

    def teacher_forced_states(
        self,
        source: Int[Tensor, "batch source_tokens"],
        target: Int[Tensor, "batch target_tokens"],
        source_lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch target_tokens width"]:
        """The decoder's states at every position of a given target (T1)."""
        memory = self.encode(source, source_lengths)
        check_tokens(self.decoder_table, target=target)
        check_same_batch(source, target)
        return self.states(target, memory)

    def encode(
        self, source: Int[Tensor, "batch tokens"], lengths: Int[Tensor, " batch"] | None = None
    ) -> EncoderOutput:
        check_tokens(self.table, lengths, source=source)
        self.check_length(source.shape[1])
        mask = None if lengths is None else padding(lengths, source.shape[1])
        x = self.source(self.table, source, position_ids(source))
        return EncoderOutput(self.encoder(x, self.attention_mask(mask, Mask(causal=self.config.encoder_causal))), mask)

    def states(
        self,
        target: Int[Tensor, "batch tokens"],
        memory: EncoderOutput | None = None,
        *,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        """The decoder's last states, attending to `memory`, or to the memory in `cache`."""
        if memory is None and (cache is None or self._reads_another_memory(cache)):
            raise UsageError("no encoded source: pass model.encode(source), or a cache from model.start(source)")
        positions = position_ids(target) if cache is None else cache.positions(target.shape[1])
        self.check_length(target.shape[1] + (0 if cache is None else cache.longest), positions)
        x = self.target(self.decoder_table, target, positions)
        encoded, mask = memory or (None, None)
        return self.decoder(x, self.decoder_mask(target, cache), memory=encoded, memory_mask=mask, cache=cache)

    def _reads_another_memory(self, cache: KVCache) -> bool:
        """Whether a layer has cross-attention and the cache has no keys and values for it."""
        layers = zip(self.decoder.blocks, cache.layers, strict=True)
        return any(block.cross is not None and layer.memory is None for block, layer in layers)

    def start(
        self, source: Int[Tensor, "batch tokens"], lengths: Int[Tensor, " batch"] | None = None, *, capacity: int = 0
    ) -> KVCache:
        """Encode the source (G1): a KV cache with its cross-attention keys and values, and no target tokens."""
        memory = self.encode(source, lengths)
        layers = self.decoder.blocks
        state = KVCache(len(source), len(layers), device=source.device, capacity=capacity)
        state.memory_mask = memory.mask
        for layer, block in zip(state.layers, layers, strict=True):
            if block.cross is not None:
                layer.memory = block.cross.project(memory.states)  # type: ignore[union-attr,operator]
        return state

    def extend(
        self,
        tokens: Int[Tensor, "batch tokens"],
        state: KVCache,
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        last: bool = False,
    ) -> Float[Tensor, "batch positions vocabulary"]:
        """Append target tokens to the KV cache; return the logits after each of them, or only after the `last`."""
        states = self.states(tokens, cache=state)
        logits: Tensor = self.last_logits(states) if last else self.apply_head("next_token", states)
        state.advance(tokens.shape[1], lengths)
        return logits

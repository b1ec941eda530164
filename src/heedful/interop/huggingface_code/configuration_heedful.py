"""Configuration of transformers trained with heedful; see modeling_heedful.py."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig


class HeedfulConfig(PreTrainedConfig):
    """Architecture of an encoder, a decoder or an encoder-decoder; config.json holds every setting."""

    model_type = "heedful"
    keys_to_ignore_at_inference = ("past_key_values",)
    attribute_map = {  # noqa: RUF012 - the name transformers looks for: the setting
        "hidden_size": "width",
        "num_hidden_layers": "layers",
        "num_attention_heads": "heads",
        "num_key_value_heads": "key_value_heads",
        "head_dim": "head_width",
    }

    def __init__(
        self,
        family: str = "encoder",  # encoder, decoder, encoder_decoder
        vocabulary: int = 8000,
        target_vocabulary: int | None = None,  # None: source and target share one table
        tie_output: bool = True,  # the output layer is the token table
        output_bias: bool = False,
        width: int = 256,
        heads: int = 4,
        head_width: int = 64,  # of queries and keys
        value_width: int = 64,
        key_value_heads: int = 4,  # fewer than heads: grouped-query attention
        layers: int = 4,
        decoder_layers: int | None = None,
        feed_forward: int = 1024,
        activation: str = "relu",  # relu, gelu, gelu_tanh, silu
        gated: bool = False,
        bias: bool = True,
        score: str = "scaled_dot",  # or dot
        window: int | None = None,  # attend to neighbors nearer than this only
        positions: str = "rotary",  # none, sinusoidal, learned, rotary, alibi
        max_position_embeddings: int = 1024,
        position_layout: str = "interleaved",  # of sines and cosines; or halves
        rotary_base: float = 10_000.0,
        norm: str = "layer",  # or rms
        norm_order: str = "pre",  # or post
        norm_epsilon: float = 1e-5,
        final_norm: bool = True,
        embedding_norm: bool = False,
        embedding_scale: bool = False,  # multiply token vectors by the root of the width
        segments: int = 0,  # kinds of token_type_ids
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        tasks: tuple[str, ...] = (),  # masked_token, next_sentence, sequence_class, answer_span, pooled
        pooling: str = "first",  # a text's vector: first (through a dense layer), mean, last
        **options: Any,
    ) -> None:
        settings = {name: value for name, value in locals().items() if name not in ("self", "options", "__class__")}
        for name, value in settings.items():
            setattr(self, name, value)
        super().__init__(**{"tie_word_embeddings": False, **options})  # the model applies the token table itself

    @property
    def vocab_size(self) -> int:
        """Tokens that the model can output."""
        return self.target_vocabulary or self.vocabulary

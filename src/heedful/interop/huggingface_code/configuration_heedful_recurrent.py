"""Configuration of recurrent networks trained with heedful; see modeling_heedful_recurrent.py."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig


class HeedfulRecurrentConfig(PreTrainedConfig):
    """Architecture of a recurrent language model or encoder-decoder; config.json holds every setting."""

    model_type = "heedful_recurrent"
    keys_to_ignore_at_inference = ("past_key_values",)
    attribute_map = {"hidden_size": "width", "num_hidden_layers": "layers"}  # noqa: RUF012 - transformers' names: ours

    def __init__(
        self,
        family: str = "recurrent_decoder",  # or recurrent_encoder_decoder
        vocabulary: int = 8000,
        target_vocabulary: int | None = None,  # None: source and target share one table
        tie_output: bool = True,  # the output layer is the token table
        width: int = 512,
        layers: int = 1,
        cell: str = "gru",  # or lstm
        bidirectional: bool = True,  # the encoder also reads the source backwards
        attention: str = "bilinear",  # dot, scaled_dot, bilinear, additive, uniform; none: one fixed context vector
        softmax: bool = True,  # False: the attention scores are the weights
        dropout: float = 0.1,
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

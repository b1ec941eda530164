"""Export and import Hugging Face tokenizers: tokenizer.json, and tokenizer_config.json for AutoTokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer as RustTokenizer
from tokenizers.processors import TemplateProcessing

from heedful.models.model_config import TransformerConfig
from heedful.text.special_tokens import END
from heedful.text.tokenizer import Tokenizer

ROLES = ("pad_token", "unk_token", "bos_token", "eos_token", "mask_token", "sep_token")
"""Hugging Face's names of our special tokens, in the order of the ids."""


def export_tokenizer(tokenizer: Tokenizer, folder: Path, config: TransformerConfig) -> None:
    """Write both files for a model of this configuration; an encoder-decoder reads END after every text."""
    rust = RustTokenizer.from_str(tokenizer.to_json())
    if config.family == "encoder_decoder":
        end = tokenizer.tokens[END]
        rust.post_processor = TemplateProcessing(single=f"$A {end}", special_tokens=[(end, END)])
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_length,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # "<s>" in a text is three ordinary characters
        "padding_side": "left" if config.family == "decoder" else "right",  # generation continues the end of a row
        **dict(zip(ROLES, tokenizer.tokens, strict=False)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(rust.to_str(pretty=True) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n", encoding="utf-8")


def import_tokenizer(file: Path) -> Tokenizer:
    """Load a tokenizer.json without its post-processor: special tokens are added by `SpecialTokenTemplate`."""
    tokenizer = Tokenizer.load(file)
    content = json.loads(tokenizer.to_json())
    return Tokenizer.from_json(json.dumps({**content, "post_processor": None}))

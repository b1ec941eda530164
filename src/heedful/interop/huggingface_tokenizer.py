"""A tokenizer as Hugging Face keeps it: tokenizer.json, and tokenizer_config.json so that AutoTokenizer finds it."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer as RustTokenizer
from tokenizers.processors import TemplateProcessing

from heedful.models.model_config import TransformerConfig
from heedful.text.special_tokens import END
from heedful.text.tokenizer import Tokenizer

ROLES = ("pad_token", "unk_token", "bos_token", "eos_token", "mask_token", "sep_token")
"""Their names for our special tokens, in the order of the ids."""


def export_tokenizer(tokenizer: Tokenizer, folder: Path, config: TransformerConfig) -> None:
    """Write both files, for a model of this configuration: an encoder-decoder reads END after every text."""
    rust = RustTokenizer.from_str(tokenizer.to_json())
    if config.family == "encoder_decoder":
        end = tokenizer.tokens[END]
        rust.post_processor = TemplateProcessing(single=f"$A {end}", special_tokens=[(end, END)])
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_length,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # text that says "<s>" is three ordinary characters
        "padding_side": "left" if config.family == "decoder" else "right",  # what is continued stands last
        **dict(zip(ROLES, tokenizer.tokens, strict=False)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(rust.to_str(pretty=True) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def import_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json, without what it would add to a text: our models add that themselves."""
    tokenizer = Tokenizer.load(file)
    described = json.loads(tokenizer.to_json())
    return Tokenizer.from_json(json.dumps({**described, "post_processor": None}))

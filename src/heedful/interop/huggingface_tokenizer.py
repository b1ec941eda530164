"""Export and import Hugging Face tokenizers: tokenizer.json, and tokenizer_config.json for AutoTokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RustTokenizer
from tokenizers.processors import TemplateProcessing

from heedful.models.model_config import ModelConfig
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.special_tokens import END, SEPARATOR, SPECIAL_TOKENS
from heedful.text.tokenizer import Tokenizer

ROLES = ("pad_token", "unk_token", "bos_token", "eos_token", "mask_token", "sep_token")
"""Hugging Face's names of our special tokens, in the order of the ids."""
FOREIGN_ROLES = {
    "[CLS]": {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    },
    "<s>": {
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "cls_token": "<s>",
        "sep_token": "</s>",
        "mask_token": "<mask>",
    },
}
"""Those of BERT's and RoBERTa's vocabularies, by the token that starts a text."""

PREPEND = {"type": "Prepend", "prepend": " "}
"""The normalizer of vocabularies whose words carry the space before them."""


def export_tokenizer(tokenizer: Tokenizer, folder: Path, config: ModelConfig, max_length: int | None) -> None:
    """Write both files for a model of this configuration; the tokenizer adds the special tokens that it reads."""
    family, tasks = config.family.removeprefix("recurrent_"), getattr(config, "tasks", ())
    content, fills_masks = json.loads(tokenizer.to_json()), "masked_token" in tasks
    rust = RustTokenizer.from_str(json.dumps(_parse_masks(content, tokenizer) if fills_masks else content))
    rust.post_processor = _post_processor(tokenizer, family, tasks)
    input_names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **({} if max_length is None else {"model_max_length": max_length}),
        "model_input_names": input_names if getattr(config, "segments", 0) > 1 else [input_names[0], input_names[2]],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": not fills_masks,  # "<s>" in a text is three ordinary characters
        "padding_side": "left" if family == "decoder" else "right",  # generation continues the end of a row
        **special_token_roles(tokenizer, family),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(rust.to_str(pretty=True) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n", encoding="utf-8")


def special_token_roles(tokenizer: Tokenizer, family: str) -> dict[str, str]:
    """Return the special tokens by Hugging Face's names of their roles."""
    tokens = tokenizer.tokens
    if family != "encoder":
        return dict(zip(ROLES, tokens, strict=False))
    start = tokens[SpecialTokenTemplate.from_tokenizer(tokenizer).start]
    if tuple(tokens[: len(SPECIAL_TOKENS)]) == SPECIAL_TOKENS:
        return {**dict(zip(ROLES, tokens, strict=False)), "cls_token": start}
    return FOREIGN_ROLES[start]


def _post_processor(tokenizer: Tokenizer, family: str, tasks: Sequence[str]) -> Any:
    """Return what adds the special tokens around a text or a pair of texts; None: no tokens are added."""
    tokens = tokenizer.tokens
    if family == "encoder_decoder":
        single, pair, ids = "$A {end}", "$A {end} $B {end}", {"end": END}
    elif family == "encoder":
        template = SpecialTokenTemplate.from_tokenizer(tokenizer)
        single, pair = "{start} $A {end}", "{start} $A {end} $B:1 {end}:1"
        ids = {"start": template.start, "end": template.end}
    elif "sequence_class" in tasks:
        single, pair, ids = "$A {end}", "$A {separator} $B:1 {end}:1", {"end": END, "separator": SEPARATOR}
    else:
        return None
    names = {role: tokens[index] for role, index in ids.items()}
    special = [(tokens[index], index) for index in ids.values()]
    return TemplateProcessing(single=single.format(**names), pair=pair.format(**names), special_tokens=special)


def _parse_masks(content: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Let a mask stand for the space before it too, and put a space before the first word of a text only.

    A mask splits a text, and a normalizer would put a space before each part.
    """
    mask = SpecialTokenTemplate.from_tokenizer(tokenizer).mask
    strips = {mask} if tokenizer.has_space_prefixes else {}
    added = [{**token, "lstrip": token["id"] in strips or token["lstrip"]} for token in content["added_tokens"]]
    steps = (content["normalizer"] or {}).get("normalizers", [])
    if PREPEND not in steps:
        return {**content, "added_tokens": added}
    others = [step for step in steps if step != PREPEND]
    first, *rest = content["pre_tokenizer"]["pretokenizers"]
    return {
        **content,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": others} if others else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{**first, "prepend_scheme": "first"}, *rest]},
    }


def import_tokenizer(file: Path) -> Tokenizer:
    """Load a tokenizer.json without its post-processor: special tokens are added by `SpecialTokenTemplate`."""
    tokenizer = Tokenizer.load(file)
    content = {**json.loads(tokenizer.to_json()), "post_processor": None}
    first, *rest = (content["pre_tokenizer"] or {}).get("pretokenizers", [{}])
    if first.get("prepend_scheme") == "first" and not first["split"]:  # as `_parse_masks` writes it
        steps = [*(content["normalizer"] or {}).get("normalizers", []), PREPEND]
        content["normalizer"] = {"type": "Sequence", "normalizers": steps}
        content["pre_tokenizer"]["pretokenizers"] = [{**first, "prepend_scheme": "never"}, *rest]
    return Tokenizer.from_json(json.dumps(content))

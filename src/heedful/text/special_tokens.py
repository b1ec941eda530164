"""The six special tokens. Every tokenizer trained here gives them the same ids, before all others (E1)."""

from __future__ import annotations

PAD, UNKNOWN, START, END, MASK, SEPARATOR = range(6)
SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>", "<sep>")
NEVER_GENERATED = (PAD, UNKNOWN, START)
"""Tokens that are no text: no search may choose them."""

"""The six special tokens. Every tokenizer trained here gives them ids 0 to 5 (E1)."""

from __future__ import annotations

PAD, UNKNOWN, START, END, MASK, SEPARATOR = range(6)
SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>", "<sep>")
NEVER_GENERATED = (PAD, UNKNOWN, START)
"""Tokens that decoding never emits."""

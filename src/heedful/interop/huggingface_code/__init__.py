"""Data files: what an exported folder carries so that `transformers` can build a model that it has no layout for.

They import torch and transformers only, never heedful, and are copied as they are.
"""

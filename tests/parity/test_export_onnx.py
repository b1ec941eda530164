"""What `heedful export --to onnx` writes, onnxruntime runs, and it answers as ours does."""

from __future__ import annotations

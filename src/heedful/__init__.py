"""heedful: train, use and inspect transformer models on your own text.

Keys such as A3 or T2 at the end of a docstring name a concept of docs/concepts.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.errors import (
        CheckpointError,
        DataError,
        HeedfulError,
        NonFiniteError,
        OutOfMemoryError,
        StoppedError,
        UsageError,
    )
    from heedful.evaluation.file_comparison import compare_files
    from heedful.evaluation.model_comparison import compare
    from heedful.inference.classifier import Classifier
    from heedful.inference.embedder import Embedder
    from heedful.inference.generator import Generator
    from heedful.inference.mask_filler import MaskFiller
    from heedful.inference.question_answerer import QuestionAnswerer
    from heedful.inference.trained_model import TrainedModel
    from heedful.inference.translator import Translator
    from heedful.inspection.attribution.methods import ATTRIBUTION_METHODS
    from heedful.interop.conversion import export
    from heedful.interventions.kinds import Ablate, Hide, Patch, Replace, Scale, Steer, Uniform, Unmask
    from heedful.interventions.parts import part_names
    from heedful.interventions.resolve import intervene
    from heedful.layers.attention import attention, attention_weights, fused_attention
    from heedful.layers.masks import Mask
    from heedful.layers.taps import edit, record, tap_names
    from heedful.loading import load
    from heedful.model_folder import save
    from heedful.models.build import build, count_parameters
    from heedful.models.decoder import Decoder
    from heedful.models.encoder import Encoder
    from heedful.models.encoder_decoder import EncoderDecoder
    from heedful.models.model_config import RecurrentConfig, TransformerConfig
    from heedful.models.presets import PRESETS, preset
    from heedful.models.recurrent import RecurrentDecoder, RecurrentEncoderDecoder
    from heedful.training.census_files import census
    from heedful.training.forecast.probe import probe
    from heedful.training.model_pruning import prune
    from heedful.training.run import plan, train
    from heedful.training.scoring import evaluate

# Names are imported on first use: `import heedful` alone does not import torch.
_MODULES = {
    "errors": (
        "CheckpointError", "DataError", "HeedfulError", "NonFiniteError", "OutOfMemoryError", "StoppedError",
        "UsageError",
    ),
    "inspection.attribution.methods": ("ATTRIBUTION_METHODS",),
    "interop.conversion": ("export",),
    "evaluation.file_comparison": ("compare_files",),
    "evaluation.model_comparison": ("compare",),
    "loading": ("load",),
    "model_folder": ("save",),
    "layers.attention": ("attention", "attention_weights", "fused_attention"),
    "layers.masks": ("Mask",),
    "interventions.kinds": ("Ablate", "Hide", "Patch", "Replace", "Scale", "Steer", "Uniform", "Unmask"),
    "interventions.parts": ("part_names",),
    "interventions.resolve": ("intervene",),
    "layers.taps": ("edit", "record", "tap_names"),
    "models.build": ("build", "count_parameters"),
    "models.model_config": ("RecurrentConfig", "TransformerConfig"),
    "models.decoder": ("Decoder",),
    "models.encoder": ("Encoder",),
    "models.encoder_decoder": ("EncoderDecoder",),
    "models.presets": ("PRESETS", "preset"),
    "models.recurrent": ("RecurrentDecoder", "RecurrentEncoderDecoder"),
    "inference.classifier": ("Classifier",),
    "inference.embedder": ("Embedder",),
    "inference.generator": ("Generator",),
    "inference.mask_filler": ("MaskFiller",),
    "inference.question_answerer": ("QuestionAnswerer",),
    "inference.trained_model": ("TrainedModel",),
    "inference.translator": ("Translator",),
    "training.census_files": ("census",),
    "training.forecast.probe": ("probe",),
    "training.model_pruning": ("prune",),
    "training.run": ("plan", "train"),
    "training.scoring": ("evaluate",),
}  # fmt: skip
_MODULE = {name: module for module, names in _MODULES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "ATTRIBUTION_METHODS", "PRESETS", "Ablate", "CheckpointError", "Classifier", "DataError", "Decoder", "Embedder",
    "Encoder", "EncoderDecoder", "Generator", "HeedfulError", "Hide", "Mask", "MaskFiller", "NonFiniteError",
    "OutOfMemoryError", "Patch", "QuestionAnswerer", "RecurrentConfig", "RecurrentDecoder",
    "RecurrentEncoderDecoder", "Replace", "Scale", "Steer", "StoppedError", "TrainedModel", "TransformerConfig",
    "Translator", "Uniform", "Unmask", "UsageError", "attention", "attention_weights", "build", "census",
    "compare", "compare_files", "count_parameters", "edit", "evaluate", "export", "fused_attention", "intervene",
    "load", "part_names", "plan", "preset", "probe", "prune", "record", "save", "tap_names", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'heedful' has no attribute '{name}'")
    return getattr(import_module(f"heedful.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return __all__

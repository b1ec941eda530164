"""Models that no layout of transformers expresses: a folder with the modeling files that build them.

The files are those in `huggingface_code`, loaded with `trust_remote_code=True`. Weights keep heedful's names, settings
too, except those in `RENAMED`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from heedful.errors import CheckpointError, UsageError
from heedful.model_limits import check_layers, require_finite
from heedful.models.build import Model, build
from heedful.models.model_config import ModelConfig, TransformerConfig

MODEL_TYPE = "heedful"
CODE = Path(__file__).with_name("huggingface_code")
MODELING_FILE = "modeling_heedful.py"
FILES = ("configuration_heedful.py", "layers_heedful.py", MODELING_FILE)
RENAMED = {"max_length": "max_position_embeddings", "classes": "num_labels"}
REQUIRED: dict[str, tuple[Any, ...]] = {
    "score": ("scaled_dot", "dot"),
    "softmax": (True,),
    "skip": (True,),
    "position_combine": ("add",),
}
"""Values that the modeling files support; all values of the other settings."""
FIXED = ("softmax", "skip", "position_combine", "position_width")
"""Settings without a choice."""
CLASSES = {
    "sequence_class": "ForSequenceClassification",
    "answer_span": "ForQuestionAnswering",
    "masked_token": "ForMaskedLM",
}
"""Ends of the names of a head's class here and in transformers; the first head counts."""
FAMILY_CLASSES = {"encoder_decoder": "ForSeq2SeqLM", "decoder": "ForCausalLM", "encoder": ""}


def require_supported(config: ModelConfig) -> TransformerConfig:
    """Return the configuration, or raise UsageError naming the first unsupported setting and the value to choose."""
    if not isinstance(config, TransformerConfig):
        raise UsageError(
            f"Hugging Face export does not support family='{config.family}': train a transformer instead, "
            "the default of `heedful train`"
        )
    for name, values in REQUIRED.items():
        if (value := getattr(config, name)) not in values:
            raise UsageError(
                f"Hugging Face export does not support {name}={value!r}: train with model.{name}={values[0]!r}, "
                "or export to onnx instead"
            )
    return config


def custom_config(config: TransformerConfig) -> dict[str, Any]:
    """config.json: every setting, and the classes that build the model."""
    settings = {name: value for name, value in config.resolved().items() if name not in FIXED and value is not None}
    if "sequence_class" not in config.tasks:
        settings.pop("classes")
    head = next((head for head in CLASSES if head in config.tasks), None)
    kind = FAMILY_CLASSES[config.family] if head is None else CLASSES[head]
    auto_classes = {"AutoModel": "HeedfulModel", f"AutoModel{kind}": f"Heedful{kind or 'Model'}"}
    auto_map = {name: f"modeling_heedful.{class_name}" for name, class_name in auto_classes.items()}
    return {
        "model_type": MODEL_TYPE,
        "architectures": [f"Heedful{kind or 'Model'}"],
        "auto_map": {"AutoConfig": "configuration_heedful.HeedfulConfig", **auto_map},
        "is_encoder_decoder": config.family == "encoder_decoder",
        **{RENAMED.get(name, name): value for name, value in settings.items()},
    }


def copy_code(folder: Path) -> None:
    for name in FILES:
        shutil.copyfile(CODE / name, folder / name)


def import_custom(hf_config: dict[str, Any], weights: dict[str, torch.Tensor], folder: Path) -> Model:
    """Build heedful's model of an exported folder."""
    names = {RENAMED.get(name, name): name for name in TransformerConfig.model_fields}
    settings = {names[key]: value for key, value in hf_config.items() if key in names}
    config = TransformerConfig(**settings)
    check_layers(config, folder, len(weights))
    with torch.device("meta"):
        model: Model = build(config)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise CheckpointError(f"weights and config.json do not fit: {problem}") from None
    require_finite(weights, folder)
    return model.eval()

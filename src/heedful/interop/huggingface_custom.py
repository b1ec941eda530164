"""Models that no layout of transformers expresses: a folder with the modeling files that build them.

The files are those in `huggingface_code`, loaded with `trust_remote_code=True`. Weights keep heedful's names, settings
too, except those in `RENAMED`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch

from heedful.errors import CheckpointError, UsageError
from heedful.model_limits import check_layers, check_values, one_line
from heedful.models.build import Model, build
from heedful.models.model_config import ModelConfig, RecurrentConfig, TransformerConfig
from heedful.models.standard_settings import ONLY_STANDARD, nonstandard_setting

CODE = Path(__file__).with_name("huggingface_code")


class ModelingFiles(NamedTuple):
    """The files that build a kind of model, and the beginning of its classes' names in them."""

    config: type[TransformerConfig | RecurrentConfig]
    prefix: str
    configuration: str
    modeling: str
    others: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return f"{self.configuration}.py", f"{self.modeling}.py", *(f"{name}.py" for name in self.others)


MODELING = {
    "heedful": ModelingFiles(
        TransformerConfig,
        "Heedful",
        "configuration_heedful",
        "modeling_heedful",
        ("layers_heedful", "generation_heedful"),
    ),
    "heedful_recurrent": ModelingFiles(
        RecurrentConfig,
        "HeedfulRecurrent",
        "configuration_heedful_recurrent",
        "modeling_heedful_recurrent",
        ("generation_heedful",),
    ),
}
"""The modeling files, by the model type in config.json."""
RENAMED = {"max_length": "max_position_embeddings", "classes": "num_labels"}
REQUIRED: dict[str, tuple[Any, ...]] = {
    "score": ("scaled_dot", "dot"),
    "softmax": (True,),
    "skip": (True,),
    "position_combine": ("add",),
}
"""Values of a transformer's settings that the modeling files support; all values of the other settings."""
FIXED = ("softmax", "skip", "position_combine", "position_width", *ONLY_STANDARD)
FIXED_RECURRENT = {"context", "window", "window_inputs"}
"""Settings without a choice."""
CLASSES = {
    "sequence_class": "ForSequenceClassification",
    "answer_span": "ForQuestionAnswering",
    "masked_token": "ForMaskedLM",
}
"""Ends of the names of a head's class here and in transformers; the first head counts."""
FAMILY_CLASSES = {"encoder_decoder": "ForSeq2SeqLM", "decoder": "ForCausalLM", "encoder": ""}


def custom_type(config: ModelConfig) -> str:
    """The model type whose modeling files build such a model; UsageError names a setting that they do not support."""
    if (setting := nonstandard_setting(config)) and not setting.startswith("score="):
        instead = ", or export to onnx instead" if isinstance(config, TransformerConfig) else ""
        raise UsageError(f"Hugging Face export does not support {setting}: train with its default{instead}")
    if isinstance(config, RecurrentConfig):
        return "heedful_recurrent"
    if not isinstance(config, TransformerConfig):
        raise UsageError(f"Hugging Face has no models with family='{config.family}': export to word2vec instead")
    for name, values in REQUIRED.items():
        if (value := getattr(config, name)) not in values:
            raise UsageError(
                f"Hugging Face export does not support {name}={value!r}: train with model.{name}={values[0]!r}, "
                "or export to onnx instead"
            )
    return "heedful"


def custom_config(config: ModelConfig) -> dict[str, Any]:
    """config.json: every setting, and the classes that build the model."""
    model_type = custom_type(config)
    files, tasks = MODELING[model_type], getattr(config, "tasks", ())
    if isinstance(config, TransformerConfig):
        settings = {name: value for name, value in config.resolved().items() if name not in FIXED}
    else:
        settings = config.model_dump(exclude=FIXED_RECURRENT)
    if "sequence_class" not in tasks:
        settings.pop("classes", None)
    head = next((head for head in CLASSES if head in tasks), None)
    kind = FAMILY_CLASSES[config.family.removeprefix("recurrent_")] if head is None else CLASSES[head]
    name = f"{files.prefix}{kind or 'Model'}"
    auto_classes = {"AutoModel": "HeedfulModel"} if model_type == "heedful" else {}
    auto_map = {auto: f"{files.modeling}.{cls}" for auto, cls in {**auto_classes, f"AutoModel{kind}": name}.items()}
    return {
        "model_type": model_type,
        "architectures": [name],
        "auto_map": {"AutoConfig": f"{files.configuration}.{files.prefix}Config", **auto_map},
        "is_encoder_decoder": config.family.endswith("encoder_decoder"),
        **{RENAMED.get(name, name): value for name, value in settings.items() if value is not None},
    }


def copy_code(folder: Path, model_type: str) -> None:
    """Copy the modeling files into an exported folder."""
    for name in MODELING[model_type].names:
        shutil.copyfile(CODE / name, folder / name)


def has_code(folder: Path) -> bool:
    """Whether an exported folder carries modeling files."""
    return any((folder / f"{files.modeling}.py").is_file() for files in MODELING.values())


def import_custom(hf_config: dict[str, Any], weights: dict[str, torch.Tensor], folder: Path) -> Model:
    """Build heedful's model of an exported folder."""
    config_type = MODELING[hf_config["model_type"]].config
    names = {RENAMED.get(name, name): name for name in config_type.model_fields}
    settings = {names[key]: value for key, value in hf_config.items() if key in names}
    config = config_type(**settings)
    check_layers(config, folder, len(weights))
    with torch.device("meta"):
        model: Model = build(config)
    check_values(weights, folder)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise CheckpointError(f"weights and config.json do not fit: {one_line(error)}") from None
    return model.eval()

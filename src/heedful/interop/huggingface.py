"""Import and export models in Hugging Face layouts: BERT, GPT-2, Llama, Marian, Pegasus, BART, or with modeling files.

The parity tests import random `transformers` models through this module and compare logits.
"""

from __future__ import annotations

import json
import re
import shutil
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from heedful.errors import CheckpointError, HeedfulError, UsageError
from heedful.interop.equivalent_weights import ModelWeights, rewrite_for_layout, sinusoid_table
from heedful.interop.huggingface_custom import MODELING, copy_code, custom_config, custom_type, import_custom
from heedful.interop.huggingface_layouts import ACTIVATIONS, LAYOUTS, UNCHANGED, Layout, WeightForm
from heedful.layers.positions import SinusoidalPositions
from heedful.model_files import ModelFiles
from heedful.model_limits import check_layers, check_values, check_weights_file
from heedful.models.build import Model, build
from heedful.models.model_config import ModelConfig, TransformerConfig
from heedful.models.presets import make_config
from heedful.models.standard_settings import nonstandard_setting

MODEL_TYPES = sorted((*LAYOUTS, *MODELING))
OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
"""Names of a norm's gain and bias in the oldest files."""


def import_model(folder: Path) -> Model:
    """Load a Hugging Face folder (`config.json` and safetensors) as one of our models."""
    hf_config = ModelFiles(folder).config
    try:
        return _import(hf_config, folder)
    except HeedfulError as error:
        raise CheckpointError(f"{folder}: {error}") from None


def _import(hf_config: dict[str, Any], folder: Path) -> Model:
    model_type = str(hf_config.get("model_type", ""))
    if model_type in MODELING:
        return import_custom(hf_config, _read_weights(folder), folder)
    if model_type not in LAYOUTS:
        raise CheckpointError(f"models of type '{model_type}' cannot be imported; known: {', '.join(MODEL_TYPES)}")
    layout = LAYOUTS[model_type]
    hf_weights = _layout_names(_read_weights(folder), layout)
    config = _import_config(hf_config, hf_weights, layout)
    check_layers(config, folder, len(hf_weights))
    with torch.device("meta"):
        model: Model = build(config)
    weights = {
        name: _import_weight(name, empty, hf_weights, config, layout) for name, empty in model.state_dict().items()
    }
    _check_positions(hf_weights, layout)
    _check_unused(hf_weights, weights, config, layout)
    check_values(weights, folder)
    model.load_state_dict(weights, assign=True)
    model.eval()
    return model


def export_model(model: Model, folder: Path, model_type: str, **settings: Any) -> None:
    """Write a model so that `transformers` can load it; `settings` are further keys of config.json.

    The types in `MODELING` have no layout in transformers: the folder then holds the code that builds the model.
    Raises UsageError naming the first setting that the layout cannot express.
    """
    if model_type in MODELING:
        custom = custom_config(model.config)
        weights = {name: weight.detach().cpu().contiguous() for name, weight in model.state_dict().items()}
        _write(folder, {**custom, **settings}, weights)
        copy_code(folder, model_type)
        return
    if model_type not in LAYOUTS:
        raise UsageError(f"unknown layout '{model_type}'; known: {', '.join(MODEL_TYPES)}")
    layout = LAYOUTS[model_type]
    rewritten = _rewrite(layout, model)
    if unsupported := unsupported_settings(rewritten.config, layout):
        raise UsageError(f"the {model_type} layout cannot express {unsupported[0]}")
    if missing := [key for key in layout.required_token_ids if key not in settings]:
        raise UsageError(f"the {model_type} layout needs {', '.join(missing)}: pass the ids your tokenizer gives them")
    hf_config = {**_export_config(rewritten.config, layout), **settings}
    prefix = "" if hf_config["architectures"] == ["BertModel"] else layout.prefix
    _write(folder, hf_config, _export_weights(rewritten, layout, prefix))


def _write(folder: Path, hf_config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hf_config, indent=2) + "\n", encoding="utf-8")
    shutil.copymode(folder / "config.json", folder / "model.safetensors")  # safetensors' default is private


def choose_layout(model: Model) -> str:
    """Return the layout of transformers that expresses this model, or a model type with code of its own."""
    for layout in LAYOUTS.values():
        if not unsupported_settings(_rewrite(layout, model).config, layout):
            return layout.model_type
    return custom_type(model.config)


def _rewrite(layout: Layout, model: Model) -> ModelWeights:
    """Rewrite the model's weights as far as possible to what the layout can express."""
    config: Any = model.config
    weights = ModelWeights(config, {name: weight.detach().cpu() for name, weight in model.state_dict().items()})
    if config.family != layout.fixed["family"]:
        return weights
    return rewrite_for_layout(weights, _layout_settings(config, layout), layout.settings)


def _export_weights(model: ModelWeights, layout: Layout, prefix: str) -> dict[str, Tensor]:
    config, weights = model
    hf_weights: dict[str, Tensor] = {}
    for name, weight in weights.items():
        hf_weights |= _export_weight(name, weight, config, layout, prefix)
    if layout.fixed.get("output_bias") and not config.output_bias:
        hf_weights["final_logits_bias"] = torch.zeros(1, config.target_vocabulary or config.vocabulary)
    if not config.tie_output:
        copies = {prefix + copy: weights["table.weight"].clone() for copy in layout.tied_copies}
        hf_weights = {**copies, **hf_weights}
    return hf_weights | {prefix + name: sinusoid_table(config, config.max_length) for name in layout.sinusoid_tables}


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Read all safetensors files of the folder."""
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise CheckpointError("no model.safetensors found (pickled weights are not read)")
    weights: dict[str, Tensor] = {}
    for file in files:
        check_weights_file(file)
        try:
            weights |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file.name} cannot be read as safetensors: {error}") from None
    types = {weight.dtype for weight in weights.values() if weight.is_floating_point()}
    if len(types) > 1:  # norms in float32 between other weights in bfloat16: the wider type holds both
        widest = reduce(torch.promote_types, types)
        weights = {name: w.to(widest) if w.is_floating_point() else w for name, w in weights.items()}
    return weights


def _layout_names(weights: dict[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """Strip the prefix that some classes add to the names of weights, and replace names of the oldest files."""
    names = {name: re.sub(r"\.(gamma|beta)$", lambda end: OLD_NAMES[end[0]], name) for name in weights}
    return {names[name].removeprefix(layout.prefix): weight for name, weight in weights.items()}


def _import_config(hf_config: dict[str, Any], weights: dict[str, Tensor], layout: Layout) -> TransformerConfig:
    twins = {key.twin: key for key in layout.settings.values() if key.twin}
    keys = {key.name: key for key in layout.settings.values()} | twins
    defaults = {name: key.default for name, key in keys.items() if key.default is not ...}
    complete = {**defaults, **{name: value for name, value in hf_config.items() if value is not None}}
    if missing := [name for name in keys if name not in complete]:
        raise CheckpointError(f"config.json does not say what {', '.join(missing)} is")
    flat = layout.flatten_config(complete)
    for name, value in layout.required_values.items():
        if flat.get(name, value) != value:
            raise CheckpointError(f"{layout.model_type} with {name}={flat[name]!r} is not supported")
    for twin, key in twins.items():
        if flat[twin] != flat[key.name]:
            raise CheckpointError(f"{twin}={flat[twin]} and {key.name}={flat[key.name]} must be equal here")
    settings = {name: flat[key.name] for name, key in layout.settings.items() if flat[key.name] is not None}
    if settings["activation"] not in ACTIVATIONS:
        raise CheckpointError(f"activation '{settings['activation']}' is not supported")
    settings["activation"] = ACTIVATIONS[settings["activation"]]
    if layout.fixed.get("output_bias"):
        settings["output_bias"] = "final_logits_bias" in weights
    stored = {name for name, module in layout.weights.items() if f"{module}.weight" in weights}
    heads = {name.split(".")[1] for name in stored if name.startswith("heads.")}
    if tasks := sorted(heads - {"next_token"}):  # next-token prediction belongs to the family
        settings["tasks"] = tasks
    if "sequence_class" in tasks:
        settings["classes"] = weights["classifier.weight"].shape[0]
    config = make_config({**layout.fixed, **settings})
    assert isinstance(config, TransformerConfig)
    return config


def unsupported_settings(config: ModelConfig, layout: Layout) -> list[str]:
    """Return the settings that the layout cannot express, each as `setting=value`."""
    if not isinstance(config, TransformerConfig) or config.family != layout.fixed["family"]:
        return [f"family='{config.family}'"]
    if setting := nonstandard_setting(config):
        return [setting]
    settings, fixed, tasks = config.resolved(), _layout_settings(config, layout), _all_tasks(config)
    variable = {*layout.settings, "tasks", "classes", "output_bias"}
    if "pooled" not in tasks:
        variable.add("pooling")
    unsupported = [
        f"{name}={value!r}" for name, value in settings.items() if name not in variable and value != fixed[name]
    ]
    if config.output_bias and not layout.fixed.get("output_bias"):
        unsupported.append("output_bias=True")
    if tasks not in layout.architectures:
        unsupported.append(f"the heads {', '.join(sorted(tasks))}")
    return unsupported


def _all_tasks(config: TransformerConfig) -> frozenset[str]:
    tasks = frozenset[str](config.tasks)
    return tasks | {"pooled"} if tasks & {"next_sentence", "sequence_class"} else tasks


def _layout_settings(config: TransformerConfig, layout: Layout) -> dict[str, Any]:
    """Return the layout's fixed settings together with this model's variable ones."""
    varying = {name: getattr(config, name) for name in layout.settings}
    return TransformerConfig(**{**varying, **layout.fixed}).resolved()


def _export_config(config: TransformerConfig, layout: Layout) -> dict[str, Any]:
    settings, tasks = config.resolved(), _all_tasks(config)
    settings["activation"] = next(hf_name for hf_name, name in ACTIVATIONS.items() if name == config.activation)
    hf_config: dict[str, Any] = {key.name: settings[name] for name, key in layout.settings.items()}
    hf_config |= {key.twin: settings[name] for name, key in layout.settings.items() if key.twin}
    hf_config = layout.nest_config({**hf_config, **layout.required_values})
    hf_config = {key: value for key, value in hf_config.items() if value is not None}
    if "sequence_class" in tasks:
        hf_config["num_labels"] = config.classes
    return {**hf_config, "model_type": layout.model_type, "architectures": [layout.architectures[tasks]]}


def _hf_names(name: str, config: TransformerConfig, layout: Layout) -> tuple[list[str], WeightForm]:
    """Return the Hugging Face names of our weight `name`, and the form it is stored in."""
    block = re.search(r"\.blocks\.(\d+)\.", name)
    template = re.sub(r"\.blocks\.\d+\.", ".blocks.{i}.", name)
    table = {**layout.weights, **(layout.unshared_weights if config.target_vocabulary else {})}
    module, _, kind = template.rpartition(".")
    if template not in table and module not in table:
        raise UsageError(f"the {layout.model_type} layout has no place for the weight {name}")
    path, end = (table[template], "") if template in table else (table[module], f".{kind}")
    stem, dot, parts = path.replace("{i}", block[1] if block else "").rpartition(".")
    names = [f"{stem}{dot}{part}{end}" for part in parts.split("+")]
    return names, layout.weight_forms.get(".".join(names[0].split(".")[-2:]), UNCHANGED)


def _import_weight(
    name: str, empty: Tensor, hf_weights: dict[str, Tensor], config: TransformerConfig, layout: Layout
) -> Tensor:
    """Return the Hugging Face weights for our weight `name`, concatenated."""
    names, form = _hf_names(name, config, layout)
    missing = [part for part in names if part not in hf_weights]
    if missing:
        raise CheckpointError(f"the weight {layout.prefix}{missing[0]} is missing")
    parts = [form.from_hf(hf_weights[part]) for part in names]
    shape = torch.cat([part.to("meta") for part in parts]).shape
    if shape != empty.shape:
        raise CheckpointError(
            f"{' + '.join(names)} of shape {tuple(shape)} does not fit config.json, which makes it {tuple(empty.shape)}"
        )
    return torch.cat(parts).contiguous()


def _export_weight(
    name: str, weight: Tensor, config: TransformerConfig, layout: Layout, prefix: str
) -> dict[str, Tensor]:
    names, form = _hf_names(name, config, layout)
    parts = torch.split(weight, _split_sizes(name, config)) if len(names) > 1 else (weight,)
    return {
        hf_name if hf_name.startswith(layout.unprefixed) else prefix + hf_name: form.to_hf(part).contiguous().clone()
        for hf_name, part in zip(names, parts, strict=True)
    }


def _split_sizes(name: str, config: TransformerConfig) -> list[int]:
    """Return the rows of each matrix that our weight concatenates."""
    settings = config.resolved()
    keys, values = (settings["key_value_heads"] * settings[width] for width in ("head_width", "value_width"))
    if "query_key_value" in name:
        return [settings["heads"] * settings["head_width"], keys, values]
    return [keys, values] if "key_value" in name else [settings["feed_forward"]] * 2


def _check_positions(hf_weights: dict[str, Tensor], layout: Layout) -> None:
    """Raise if a stored sinusoid table is not the standard one, within bfloat16 precision."""
    for name in layout.sinusoid_tables:
        table = hf_weights.get(name)
        if table is None:
            continue
        sinusoid = SinusoidalPositions(table.shape[1], layout=layout.fixed["position_layout"])
        if not torch.allclose(table.float(), sinusoid(torch.arange(len(table))[None])[0], rtol=0, atol=1e-2):
            raise CheckpointError(f"{name} is not the standard sinusoidal position table of {layout.model_type} models")


def _check_unused(
    hf_weights: dict[str, Tensor], weights: dict[str, Tensor], config: TransformerConfig, layout: Layout
) -> None:
    """Raise if a stored weight was not used, unless it repeats a token table or has no learned values."""
    used = {part for name in weights for part in _hf_names(name, config, layout)[0]}
    known = {*layout.ignored_weights, *layout.sinusoid_tables}
    tables = [weights[name] for name in ("table.weight", "target_table.weight") if name in weights]
    unused = [
        name
        for name, weight in hf_weights.items()
        if name not in used
        and re.sub(r"\.\d+\.", ".{i}.", name) not in known
        and not any(torch.equal(weight, table) for table in tables)
    ]
    if unused:
        raise CheckpointError(f"the {layout.model_type} layout has no weights {', '.join(unused[:5])}")

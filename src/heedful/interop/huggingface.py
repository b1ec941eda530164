"""Models in Hugging Face's layouts, in and out: BERT, GPT-2, Llama, Marian, Pegasus, BART.

The parity tests load random models of theirs through here and compare logits: a second opinion on
every layer of ours.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from heedful.errors import CheckpointError, HeedfulError, UsageError
from heedful.interop.huggingface_layouts import ACTIVATIONS, LAYOUTS, WeightForm, Layout
from heedful.interop.weight_transforms import ModelWeights, rewrite_for_layout, sinusoid_table
from heedful.layers.positions import SinusoidalPositions
from heedful.models.build import build
from heedful.models.model_config import ModelConfig, TransformerConfig
from heedful.models.presets import make_config

PLAIN = WeightForm(lambda theirs: theirs, lambda ours: ours)
OLD_NAMES = {"gamma": "weight", "beta": "bias"}
"""What the first published files call a norm's gain and bias."""


def import_model(folder: Path) -> Any:
    """Our model from a Hugging Face folder (`config.json` and safetensors)."""
    described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    try:
        return _imported(described, folder)
    except HeedfulError as error:
        raise CheckpointError(f"{folder}: {error}") from None


def _imported(described: dict[str, Any], folder: Path) -> Any:
    layout = LAYOUTS.get(described.get("model_type", ""))
    if layout is None:
        raise CheckpointError(
            f"models of type '{described.get('model_type')}' cannot be imported; known: {', '.join(sorted(LAYOUTS))}"
        )
    theirs = _read_weights(folder, layout)
    config = _our_config(described, theirs, layout)
    with torch.device("meta"):
        model = build(config)
    ours = {name: _inward(name, empty, theirs, config, layout) for name, empty in model.state_dict().items()}
    _refuse_other_positions(theirs, layout)
    _refuse_leftovers(theirs, ours, config, layout)
    model.load_state_dict(ours, assign=True)
    return model.eval()


def export_model(model: Any, folder: Path, model_type: str, **settings: Any) -> None:
    """Write a model so that `transformers` can load it; `settings` are further keys for their config.json.

    What the layout cannot express is refused by name.
    """
    if model_type not in LAYOUTS:
        raise UsageError(f"unknown layout '{model_type}'; known: {', '.join(sorted(LAYOUTS))}")
    layout = LAYOUTS[model_type]
    absent = [key for key in layout.needs if key not in settings]
    written = _as_in(layout, model)
    if found := unsupported_settings(written.config, layout):
        raise UsageError(f"the {model_type} layout cannot express {found[0]}")
    if absent:
        raise UsageError(f"the {model_type} layout needs {', '.join(absent)}: pass the ids your tokenizer gives them")
    described = {**_their_config(written.config, layout), **settings}
    prefix = "" if described["architectures"] == ["BertModel"] else layout.prefix
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_their_weights(written, layout, prefix), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    shutil.copymode(folder / "config.json", folder / "model.safetensors")  # safetensors' own is for the owner alone


def choose_layout(model: Any) -> str:
    """The layout that says what this model computes, or an error naming what the nearest one cannot say."""
    family = model.config.family
    mine = [layout for layout in LAYOUTS.values() if layout.fixed["family"] == family]
    if not mine:
        raise UsageError(f"no layout of Hugging Face expresses family='{family}'")
    lacking = {layout.model_type: unsupported_settings(_as_in(layout, model).config, layout) for layout in mine}
    nearest = min(lacking, key=lambda name: len(lacking[name]))
    if lacking[nearest]:
        instead = "ctranslate2 or onnx" if family != "encoder" else "onnx"
        problem = f"the {nearest} layout of Hugging Face cannot express {lacking[nearest][0]}"
        raise UsageError(f"{problem}; export to {instead} instead")
    return nearest


def _as_in(layout: Layout, model: Any) -> ModelWeights:
    """The model, written as far as it can be in the layout's own terms."""
    config = model.config
    written = ModelWeights(config, {name: weight.detach().cpu() for name, weight in model.state_dict().items()})
    if config.family != layout.fixed["family"]:
        return written
    return rewrite_for_layout(written, _always(config, layout), layout.settings)


def _their_weights(written: ModelWeights, layout: Layout, prefix: str) -> dict[str, Tensor]:
    config, weights = written
    theirs: dict[str, Tensor] = {}
    for name, weight in weights.items():
        theirs |= _outward(name, weight, config, layout, prefix)
    if layout.fixed.get("output_bias") and not config.output_bias:
        theirs["final_logits_bias"] = torch.zeros(1, config.target_vocabulary or config.vocabulary)
    if not config.tie_output:
        copies = {prefix + copy: weights["table.weight"].clone() for copy in layout.copies}
        theirs = {**copies, **theirs}
    return theirs | {prefix + name: sinusoid_table(config, config.max_length) for name in layout.sinusoids}


def _read_weights(folder: Path, layout: Layout) -> dict[str, Tensor]:
    """All safetensors of the folder, without the prefix that some classes put before their names."""
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise CheckpointError("no model.safetensors found (pickled weights are not read)")
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            weights |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file.name} cannot be read as safetensors: {error}") from None
    return {_present_name(name).removeprefix(layout.prefix): weight for name, weight in weights.items()}


def _present_name(name: str) -> str:
    module, dot, kind = name.rpartition(".")
    return module + dot + OLD_NAMES.get(kind, kind)


def _our_config(described: dict[str, Any], weights: dict[str, Tensor], layout: Layout) -> TransformerConfig:
    stated = {**layout.implied, **{key: value for key, value in described.items() if value is not None}}
    absent = [key for key in (*layout.settings.values(), *layout.same) if key not in stated]
    if absent:
        raise CheckpointError(f"config.json does not say what {', '.join(absent)} is")
    flat = layout.flatten(stated)
    for key, value in layout.defaults.items():
        if flat.get(key, value) != value:
            raise CheckpointError(f"{layout.model_type} with {key}={flat[key]!r} is not supported")
    for key, other in layout.same.items():
        if flat[key] != flat[other]:
            raise CheckpointError(f"{key}={flat[key]} and {other}={flat[other]} must be equal here")
    settings = {ours: flat[theirs] for ours, theirs in layout.settings.items() if flat[theirs] is not None}
    if settings["activation"] not in ACTIVATIONS:
        raise CheckpointError(f"activation '{settings['activation']}' is not supported")
    settings["activation"] = ACTIVATIONS[settings["activation"]]
    if layout.fixed.get("output_bias"):
        settings["output_bias"] = "final_logits_bias" in weights
    tasks = _tasks(weights, layout)
    if tasks:
        settings["tasks"] = tasks
    if "sequence_class" in tasks:
        settings["classes"] = weights["classifier.weight"].shape[0]
    config = make_config({**layout.fixed, **settings})
    assert isinstance(config, TransformerConfig)
    return config


def _tasks(weights: dict[str, Tensor], layout: Layout) -> tuple[str, ...]:
    """The heads that have weights, beyond next-token prediction, which the family tells of."""
    rows = [(ours.split("."), theirs[0]) for ours, theirs in layout.weights.items() if ours.startswith("heads.")]
    return tuple(sorted({task for (_, task, *_), theirs in rows if f"{theirs}.weight" in weights} - {"next_token"}))


def unsupported_settings(config: ModelConfig, layout: Layout) -> list[str]:
    """What the layout has no words for, each as `setting=value`."""
    if not isinstance(config, TransformerConfig) or config.family != layout.fixed["family"]:
        return [f"family='{config.family}'"]
    ours, always, tasks = config.resolved(), _always(config, layout), _all_tasks(config)
    free = {*layout.settings, "tasks", "classes", "output_bias"}
    if "pooled" not in tasks:
        free.add("pooling")
    found = [f"{name}={ours[name]!r}" for name in ours if name not in free and ours[name] != always[name]]
    if config.output_bias and not layout.fixed.get("output_bias"):
        found.append("output_bias=True")
    if tasks not in layout.architectures:
        found.append(f"the heads {', '.join(sorted(tasks))}")
    return found


def _all_tasks(config: TransformerConfig) -> frozenset[str]:
    tasks = frozenset[str](config.tasks)
    return tasks | {"pooled"} if tasks & {"next_sentence", "sequence_class"} else tasks


def _always(config: TransformerConfig, layout: Layout) -> dict[str, Any]:
    """The settings that every model of the layout has, beside those of this one that it can vary."""
    varying = {name: getattr(config, name) for name in layout.settings}
    return TransformerConfig(**{**varying, **layout.fixed}).resolved()


def _their_config(config: TransformerConfig, layout: Layout) -> dict[str, Any]:
    ours, tasks = config.resolved(), _all_tasks(config)
    described: dict[str, Any] = {theirs: ours[name] for name, theirs in layout.settings.items()}
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    described[layout.settings["activation"]] = names[config.activation]
    described |= {theirs: described[other] for theirs, other in layout.same.items()}
    described |= layout.defaults
    described = layout.unflatten(described)
    described = {key: value for key, value in described.items() if value is not None}
    if "sequence_class" in tasks:
        described["num_labels"] = config.classes
    return {**described, "model_type": layout.model_type, "architectures": [layout.architectures[tasks]]}


def _their_names(name: str, config: TransformerConfig, layout: Layout) -> tuple[tuple[str, ...], WeightForm]:
    """Their names for our weight `name`, and the form they keep it in."""
    number = re.search(r"\.blocks\.(\d+)\.", name)
    template = re.sub(r"\.blocks\.\d+\.", ".blocks.{i}.", name)
    table = {**layout.weights, **(layout.unshared if config.target_vocabulary else {})}
    module, _, kind = template.rpartition(".")
    theirs = table.get(template) or tuple(f"{part}.{kind}" for part in table.get(module, ()))
    if not theirs:
        raise UsageError(f"the {layout.model_type} layout has no place for the weight {name}")
    names = tuple(part.replace("{i}", number.group(1)) if number else part for part in theirs)
    module = names[0] if template in table else names[0].rpartition(".")[0]
    form = layout.forms.get(module.rpartition(".")[2], PLAIN)
    return names, PLAIN if kind == "bias" and "bias" not in module else form


def _inward(name: str, empty: Tensor, theirs: dict[str, Tensor], config: TransformerConfig, layout: Layout) -> Tensor:
    """Their weights in the place of our `empty` one."""
    names, form = _their_names(name, config, layout)
    missing = [part for part in names if part not in theirs]
    if missing:
        raise CheckpointError(f"the weight {layout.prefix}{missing[0]} is missing")
    weight = torch.cat([form.from_hf(theirs[part]) for part in names]).contiguous()
    if weight.shape != empty.shape:
        raise CheckpointError(
            f"{' + '.join(names)} of shape {tuple(weight.shape)} does not fit config.json, "
            f"which makes it {tuple(empty.shape)}"
        )
    return weight


def _outward(name: str, weight: Tensor, config: TransformerConfig, layout: Layout, prefix: str) -> dict[str, Tensor]:
    names, form = _their_names(name, config, layout)
    pieces = torch.split(weight, _sizes(name, config)) if len(names) > 1 else (weight,)
    return {
        part if part.startswith(layout.heads) else prefix + part: form.to_hf(piece).contiguous().clone()
        for part, piece in zip(names, pieces, strict=True)
    }


def _sizes(name: str, config: TransformerConfig) -> list[int]:
    """Rows of each of the matrices that ours holds side by side."""
    ours = config.resolved()
    keys, values = (ours["key_value_heads"] * ours[width] for width in ("head_width", "value_width"))
    if "query_key_value" in name:
        return [ours["heads"] * ours["head_width"], keys, values]
    return [keys, values] if "key_value" in name else [ours["feed_forward"]] * 2


def _refuse_other_positions(theirs: dict[str, Tensor], layout: Layout) -> None:
    """Sinusoids are computed here: a table that holds anything else would be lost without a word.

    Its numbers may be as coarse as bfloat16's.
    """
    for name in layout.sinusoids:
        table = theirs.get(name)
        if table is None:
            continue
        sinusoid = SinusoidalPositions(table.shape[1], layout=layout.fixed["position_layout"])
        if not torch.allclose(table.float(), sinusoid(torch.arange(len(table))[None])[0], rtol=0, atol=1e-2):
            raise CheckpointError(f"{name} holds other positions than the sinusoid of {layout.model_type} models")


def _refuse_leftovers(
    theirs: dict[str, Tensor], ours: dict[str, Tensor], config: TransformerConfig, layout: Layout
) -> None:
    """A weight of theirs that found no place is an error, unless it repeats a token table or holds nothing."""
    used = {part for name in ours for part in _their_names(name, config, layout)[0]}
    known = {*layout.ignored, *layout.sinusoids}
    tables = [ours[name] for name in ("table.weight", "target_table.weight") if name in ours]
    left = [
        name
        for name, weight in theirs.items()
        if name not in used
        and re.sub(r"\.\d+\.", ".{i}.", name) not in known
        and not any(torch.equal(weight, table) for table in tables)
    ]
    if left:
        raise CheckpointError(f"no place here for the weights {', '.join(left[:5])}")

"""`transformers` loads what `heedful export --to huggingface` writes, with the same outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers

import heedful
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.search.settings import SearchSettings
from heedful.inference.trained_model import TrainedModel
from heedful.interop.conversion import import_folder
from heedful.loading import wrap_model
from heedful.text.special_tokens import END
from heedful.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("quiet_transformers")


def until_end(ids: Any) -> list[int]:
    """Up to the first END."""
    tokens = list(map(int, ids))
    return tokens[: tokens.index(END)] if END in tokens else tokens


def test_transformers_translates_like_heedful(
    translator: TrainedModel, held_out: list[str], translations: list[list[int]], tmp_path: Path
) -> None:
    heedful.export(translator, "huggingface", tmp_path / "there")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "there")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "there")
    assert type(model).__name__ == "PegasusForConditionalGeneration"
    batch = tokenizer(held_out, padding=True, return_tensors="pt")
    output = model.generate(**batch, num_beams=1, max_new_tokens=14)
    assert [until_end(ids[1:]) for ids in output] == translations
    assert tokenizer.batch_decode(output, skip_special_tokens=True) == translator.tokenizers[0].decode(translations)


def test_default_generation_settings_search_like_heedful(
    translator: TrainedModel, held_out: list[str], tmp_path: Path
) -> None:
    heedful.export(translator, "huggingface", tmp_path / "there")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "there")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "there")
    output = model.generate(**tokenizer(held_out, padding=True, return_tensors="pt"), max_new_tokens=40)
    settings = SearchSettings(beam=4, early_stopping=True, max_length=40)
    results = TorchBackend(translator.model).translate(SearchRequest(translator.tokenizer.encode(held_out), settings))
    assert [until_end(ids[1:]) for ids in output] == [best.tokens for best, *_ in results]


def test_transformers_generates_like_heedful(
    writer: TrainedModel, prompts: list[list[int]], continuations: list[list[int]], tmp_path: Path
) -> None:
    heedful.export(writer, "huggingface", tmp_path / "there")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "there")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "there")
    assert type(model).__name__ == "LlamaForCausalLM"
    texts = writer.tokenizers[0].decode(prompts)
    texts[0] = texts[0][:2]  # prompts of two lengths, so that there is padding
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    assert batch.input_ids[1:].tolist() == prompts[1:]
    output = model.generate(**batch, max_new_tokens=20)[:, len(prompts[1]) :]
    settings = SearchSettings(beam=1, max_length=20)
    first = TorchBackend(writer.model).generate(SearchRequest([prompts[0][:2]], settings))[0][0].tokens
    assert [until_end(ids) for ids in output] == [first, *continuations[1:]]


SMALL: dict[str, Any] = {"vocabulary": 40, "width": 16, "heads": 2, "layers": 2, "max_length": 24}
DESIGNS: dict[str, tuple[str, dict[str, Any], str]] = {
    "the paper's, sines and cosines interleaved": ("paper-base", {}, "marian"),
    "no biases anywhere": ("paper-base", {"bias": False}, "marian"),
    "two vocabularies": ("paper-base", {"target_vocabulary": 30}, "marian"),
    "pre-norm, sinusoidal": ("laptop-translator", {}, "pegasus"),
    "pre-norm, an output of its own": ("laptop-translator", {"tie_output": False, "output_bias": True}, "pegasus"),
    "learned positions, norm after them": ("paper-base", {"positions": "learned", "embedding_norm": True}, "bart"),
    "gpt-2": ("gpt2", {}, "gpt2"),
    "sinusoidal writer, scaled and tied": ("laptop-writer", {}, "gpt2"),
    "writer without positions or biases": ("laptop-writer", {"positions": "none", "bias": False}, "gpt2"),
    "llama with dropout": ("llama-135m", {"key_value_heads": 1, "dropout": 0.2}, "llama"),
    "bert without segments": ("bert-tiny", {"segments": 0, "tasks": ("masked_token",)}, "bert"),
}


@pytest.mark.parametrize("design", DESIGNS)
def test_exported_and_reimported_designs_keep_their_logits(design: str, tmp_path: Path) -> None:
    preset, settings, layout = DESIGNS[design]
    model = perturbed(heedful.build(preset, **{**SMALL, **settings}))
    heedful.export(wrap_model(model), "huggingface", tmp_path / "there")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "there")
    assert config.model_type == layout
    theirs = getattr(transformers, config.architectures[0]).from_pretrained(tmp_path / "there")
    back = import_folder(tmp_path / "there", tmp_path / "back").model
    source, target = torch.randint(6, 30, (2, 9)), torch.randint(6, 30, (2, 7))
    with torch.no_grad():
        if model.config.family == "encoder_decoder":
            output = theirs.eval()(input_ids=source, decoder_input_ids=target).logits
            expected, again = model(source, target), back(source, target)
        else:
            output = theirs.eval()(input_ids=source).logits
            expected, again = (logits(exported, source) for exported in (model, back))
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-4)


def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    if model.config.family == "decoder":
        output: torch.Tensor = model(tokens)
        return output
    scored: torch.Tensor = model.apply_head("masked_token", model(tokens))
    return scored


@torch.no_grad()
def perturbed(model: Any) -> Any:
    """Perturb every weight: initial biases of 0 and gains of 1 would hide mistakes."""
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.2)
    return model.eval()


def test_special_token_text_stays_text_after_export(translator: TrainedModel, tmp_path: Path) -> None:
    heedful.export(translator, "huggingface", tmp_path / "there")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "there")
    text = "1 May <s> 1999"
    assert tokenizer(text).input_ids == [*translator.tokenizers[0].encode([text])[0], END]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, END)


def test_tokenizer_of_an_imported_encoder_keeps_its_special_tokens(tmp_path: Path) -> None:
    names = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
    vocabulary = {name: index for index, name in enumerate(names)}
    rust = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    rust.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    rust.add_special_tokens([name for name in names if name.startswith("[")])
    model = heedful.build("bert-tiny", **{**SMALL, "vocabulary": len(names)}, tasks=("sequence_class",))
    heedful.export(wrap_model(model, (Tokenizer(rust),)), "huggingface", tmp_path / "there")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "there")
    pair = tokenizer("a", "b a")
    assert pair.input_ids == [3, 6, 4, 7, 6, 4]
    assert pair.token_type_ids == [0, 0, 0, 1, 1, 1]
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id, tokenizer.cls_token_id) == (0, 5, 3)


def test_exported_model_reimports_with_tokenizer_and_translations(
    translator: TrainedModel, held_out: list[str], tmp_path: Path
) -> None:
    heedful.export(translator, "huggingface", tmp_path / "there")
    back = import_folder(tmp_path / "there", tmp_path / "back")
    assert back.tokenizers == translator.tokenizers
    assert back.translate(held_out, engine="torch") == translator.translate(held_out, engine="torch")

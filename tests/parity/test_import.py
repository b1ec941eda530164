"""Imported models with their own special tokens generate the same texts as in `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

import heedful
from heedful import CheckpointError, UsageError
from heedful.data.dates_corpus import Dates
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.search.settings import SearchSettings
from heedful.interop.conversion import import_folder
from heedful.loading import wrap_model
from heedful.text.special_tokens import END, START
from heedful.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("quiet_transformers")

SMALL = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 64}
BART = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}


def byte_bpe(texts: list[str], special: list[str]) -> tokenizers.Tokenizer:
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=sorted(alphabet), show_progress=False
    )
    rust.train_from_iterator(texts, trainer)
    return rust


def unigram(texts: list[str], special: list[str]) -> tokenizers.Tokenizer:
    rust = tokenizers.Tokenizer(models.Unigram())
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False)
    rust.train_from_iterator(texts, trainer)
    return rust


def save_model(model: Any, rust: tokenizers.Tokenizer, roles: dict[str, str], folder: Path) -> Any:
    """Perturb the weights and save model and tokenizer."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight), alpha=0.2)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=rust, **roles)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.fixture(scope="module")
def texts(dates: Dates) -> list[str]:
    return [pair.source for pair in dates.train[:500]]


def test_imported_gpt2_with_last_special_token_generates_the_same(texts: list[str], tmp_path: Path) -> None:
    rust = byte_bpe(texts, [])
    rust.add_special_tokens(["<|endoftext|>"])
    last = rust.get_vocab_size() - 1
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": last + 5}  # a padded table
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=last, eos_token_id=last, pad_token_id=None)
    )
    tokenizer = save_model(
        theirs, rust, {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}, tmp_path / "there"
    )
    ours = import_folder(tmp_path / "there", tmp_path / "ours")
    assert ours.tokenizers[0].tokens[END] == "<|endoftext|>"
    assert heedful.load(tmp_path / "ours").tokenizers == ours.tokenizers
    for text in texts[:10]:
        inputs = tokenizer(text, return_tensors="pt")
        output = theirs.generate(**inputs, max_new_tokens=12, do_sample=False, pad_token_id=last)[0]
        for engine in ("torch", "ctranslate2"):
            text_generated = ours.generate(text, max_length=12, temperature=0.0, engine=engine)
            assert text_generated == tokenizer.decode(output, skip_special_tokens=True)
        assert ours.tokenizers[0].decode(ours.tokenizers[0].encode([text])) == [text]


@pytest.mark.parametrize("kind", [byte_bpe, unigram])
def test_imported_bart_that_starts_with_end_translates_the_same(kind: Any, texts: list[str], tmp_path: Path) -> None:
    rust = kind(texts, [*BART.values()])
    rust.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    config = transformers.BartConfig(
        **SMALL,
        **HEADS,
        vocab_size=rust.get_vocab_size(),
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    theirs = transformers.BartForConditionalGeneration(config)
    tokenizer = save_model(theirs, rust, BART, tmp_path / "there")
    ours = import_folder(tmp_path / "there", tmp_path / "ours")
    assert ours.tokenizers[0].tokens[START] == "<<s>>"  # their <s> is another token
    inputs = tokenizer(texts[:20], padding=True, return_tensors="pt")
    output = theirs.generate(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        max_new_tokens=20,
        num_beams=1,
        suppress_tokens=[0, 1, 3],
    )
    sources = ours.tokenizers[0].encode(texts[:20])
    translated = TorchBackend(ours.model).translate(SearchRequest(sources, SearchSettings(beam=1, max_length=20)))
    assert ours.tokenizers[0].decode([hypotheses[0].tokens for hypotheses in translated]) == tokenizer.batch_decode(
        output, skip_special_tokens=True
    )


def test_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    model = heedful.build("gpt2", vocabulary=20, width=8, heads=2, layers=1, max_length=8)
    heedful.export(wrap_model(model), "huggingface", tmp_path / "there")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "diary.txt").write_text("mine")
    with pytest.raises(UsageError, match="ours exists and is not empty; choose another folder"):
        import_folder(tmp_path / "there", tmp_path / "ours")
    assert [file.name for file in (tmp_path / "ours").iterdir()] == ["diary.txt"]


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere is not a model folder: it does not exist"):
        import_folder(tmp_path / "nowhere", tmp_path / "ours")
    assert not list(tmp_path.iterdir())


def test_our_tokenizer_is_imported_unchanged(translator: heedful.TrainedModel, tmp_path: Path) -> None:
    heedful.export(translator, "huggingface", tmp_path / "there")
    back = import_folder(tmp_path / "there", tmp_path / "back")
    assert back.tokenizers[0] == Tokenizer.load(tmp_path / "back" / "tokenizer.json") == translator.tokenizers[0]

"""Recurrent models exported to transformers with modeling files give the same logits and tokens there."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import heedful
from heedful.interop.conversion import import_folder
from heedful.interop.usage_snippets import usage_snippet
from heedful.loading import wrap_model
from heedful.models.build import build
from heedful.models.model_config import RecurrentConfig, WordVectorsConfig
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

pytestmark = pytest.mark.usefixtures("quiet_transformers")

SMALL: dict[str, Any] = {"vocabulary": 40, "width": 16}
DESIGNS: dict[str, tuple[str, dict[str, Any]]] = {
    "bilinear, GRU": ("recurrent-translator", {}),
    "additive, LSTM, two layers": ("recurrent-translator", {"attention": "additive", "cell": "lstm", "layers": 2}),
    "dot, one direction": ("recurrent-translator", {"attention": "dot", "bidirectional": False, "tie_output": False}),
    "scaled dot, two vocabularies": ("recurrent-translator", {"attention": "scaled_dot", "target_vocabulary": 30}),
    "uniform": ("recurrent-translator", {"attention": "uniform"}),
    "linear attention": ("recurrent-translator", {"attention": "scaled_dot", "softmax": False}),
    "one vector, LSTM": ("recurrent-bottleneck", {"cell": "lstm", "layers": 2}),
    "writer, LSTM": ("recurrent-writer", {"layers": 2}),
    "writer, GRU": ("recurrent-writer", {"cell": "gru", "layers": 1, "tie_output": False}),
}
TEXTS = ["a small text", "another text, that is longer", "one"]
TOKENIZER = Tokenizer.train(TEXTS, TokenizerConfig(kind="characters", vocabulary=40))


@torch.no_grad()
def perturbed(preset: str, **settings: Any) -> Any:
    """A model with every weight perturbed: initial biases of 0 would hide mistakes."""
    torch.manual_seed(3)
    model = heedful.build(preset, **{**SMALL, **settings})
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.3)
    return model.eval()


def exported(model: Any, folder: Path) -> Any:
    """The model as transformers loads it, by the class that config.json names."""
    heedful.export(model, "huggingface", folder)
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    auto_class = next(name for name in reversed(config.auto_map) if name != "AutoConfig")
    return getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True)


@pytest.mark.parametrize("design", DESIGNS)
@torch.no_grad()
def test_logits_are_the_same_with_padding_on_either_side(design: str, tmp_path: Path) -> None:
    preset, settings = DESIGNS[design]
    model = perturbed(preset, **settings)
    theirs, back = exported(wrap_model(model), tmp_path / "there"), heedful.load(tmp_path / "there").model
    source, target, lengths = torch.randint(6, 30, (2, 9)), torch.randint(6, 30, (2, 7)), torch.tensor([9, 5])
    right = (torch.arange(9) < lengths[:, None]).long()
    left, shifted = right.flip(1), torch.stack([source[0], source[1].roll(4)])
    if model.config.family == "recurrent_encoder_decoder":
        expected, again = model(source, target, lengths), back(source, target, lengths)
        for tokens, mask in ((source, right), (shifted, left)):
            output = theirs(input_ids=tokens, attention_mask=mask, decoder_input_ids=target)
            torch.testing.assert_close(output.logits, expected, rtol=1e-4, atol=1e-4)
    else:
        expected, again = model(source), back(source)
        output = theirs(input_ids=shifted, attention_mask=left)
        torch.testing.assert_close(output.logits[0], expected[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(output.logits[1, 4:], expected[1, :5], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(again, expected)


@pytest.mark.parametrize("preset", ["recurrent-translator", "recurrent-bottleneck"])
def test_translations_are_the_same_texts(preset: str, tmp_path: Path) -> None:
    ours = wrap_model(perturbed(preset, vocabulary=len(TOKENIZER), cell="lstm", layers=2), (TOKENIZER,))
    model = exported(ours, tmp_path / "there")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "there", trust_remote_code=True)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")

    def generate(**options: Any) -> list[str]:
        texts: list[str] = tokenizer.batch_decode(model.generate(**batch, **options), skip_special_tokens=True)
        return texts

    greedy = ours.translate(TEXTS, beam=1, engine="torch")
    assert len({*greedy}) == len(TEXTS)
    assert generate(num_beams=1) == generate(num_beams=1, use_cache=False) == greedy
    assert generate(num_beams=3, early_stopping="never") == ours.translate(TEXTS, beam=3, engine="torch")
    assert "max_new_tokens" not in (snippet := usage_snippet(ours, "huggingface", tmp_path / "there"))
    assert "trust_remote_code=True" in snippet


def test_a_pipeline_continues_padded_prompts_alike(tmp_path: Path) -> None:
    ours = wrap_model(perturbed("recurrent-writer", vocabulary=len(TOKENIZER)), (TOKENIZER,))
    exported(ours, tmp_path / "there")
    generate = transformers.pipeline("text-generation", str(tmp_path / "there"), trust_remote_code=True)
    prompts = ["a sma", "another te", "one"]
    expected = ours.generate(prompts, max_length=12, temperature=0.0)
    single = [generate(prompt, max_new_tokens=12)[0]["generated_text"] for prompt in prompts]
    batched = [outputs[0]["generated_text"] for outputs in generate(prompts, max_new_tokens=12, batch_size=3)]
    assert single == batched == expected
    beam = generate(prompts, max_new_tokens=12, num_beams=3, early_stopping="never")
    assert [outputs[0]["generated_text"] for outputs in beam] == ours.generate(prompts, max_length=12, beam=3)


def test_an_exported_folder_is_imported_and_saved_again(tmp_path: Path) -> None:
    ours = wrap_model(perturbed("recurrent-translator", vocabulary=len(TOKENIZER)), (TOKENIZER,))
    model = exported(ours, tmp_path / "there")
    back: Any = import_folder(tmp_path / "there", tmp_path / "back")
    assert back.translate(TEXTS, engine="torch") == ours.translate(TEXTS, engine="torch")
    model.save_pretrained(tmp_path / "again")
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again", trust_remote_code=True)
    assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in model.state_dict().items())


def test_fine_tuning_with_transformers_lowers_the_loss(tmp_path: Path) -> None:
    model = exported(wrap_model(heedful.build("recurrent-translator", **SMALL)), tmp_path / "there").train()
    source, labels = torch.randint(6, 30, (4, 9)), torch.randint(6, 30, (4, 7))
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=2e-2), []
    for _ in range(12):
        loss = model(input_ids=source, labels=labels).loss
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] - 0.3


def test_the_modeling_files_know_every_setting(tmp_path: Path) -> None:
    """A new one has to be built there too, or be refused."""
    exported(wrap_model(perturbed("recurrent-translator")), tmp_path / "there")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "there", trust_remote_code=True)
    known = set(inspect.signature(type(config).__init__).parameters) - {"self", "options"}
    refused = {"window", "window_inputs", "context"}  # of models that are not exported to Hugging Face
    assert known == {*RecurrentConfig.model_fields} - refused


def test_word_vectors_have_no_models_of_transformers(tmp_path: Path) -> None:
    with pytest.raises(heedful.UsageError, match="family='word_vectors': export to word2vec instead"):
        heedful.export(
            wrap_model(build(WordVectorsConfig(family="word_vectors", vocabulary=30))),
            "huggingface",
            tmp_path / "there",
        )

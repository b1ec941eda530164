"""An imported BERT with its own tokenizer fills masks like `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import heedful
from heedful.interop.conversion import import_folder

pytestmark = pytest.mark.usefixtures("quiet_transformers")

TEXTS = ["The grass was green and the sky was blue .", "Red wine, white bread: all is well here."] * 5
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GAPS = ["The grass was [MASK] .", "[MASK] wine, [MASK] bread: all is well.", "is[MASK]."]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A tiny random BERT saved by `save_pretrained`."""
    rust = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    rust.normalizer, rust.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=SPECIAL, show_progress=False)
    rust.train_from_iterator(TEXTS, trainer)
    rust.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    roles = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=rust, **roles)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(
        transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **sizes)
    ).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.2)
    folder = tmp_path_factory.mktemp("bert")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, model, tokenizer


@pytest.mark.parametrize("imported", [False, True])
def test_masks_are_filled_like_transformers(bert: tuple[Path, Any, Any], imported: bool, tmp_path: Path) -> None:
    folder, model, tokenizer = bert
    if imported:
        import_folder(folder, tmp_path / "ours")
    trained = heedful.load(tmp_path / "ours" if imported else folder)
    assert trained.task == "fill"
    for text, answer in zip(GAPS, trained.fill(GAPS, top=4), strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            likely = model(**inputs).logits[0].softmax(-1)
        likely[:, : len(SPECIAL)] = 0
        mask_positions = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero().flatten().tolist()
        assert len(mask_positions) == len(answer.guesses)
        for position, guesses in zip(mask_positions, answer.guesses, strict=True):
            chances, words = likely[position].topk(4)
            assert [word for word, _ in guesses] == tokenizer.convert_ids_to_tokens(words.tolist())
            assert [chance for _, chance in guesses] == pytest.approx(chances.tolist(), rel=1e-3)


def test_imported_bert_is_evaluated_on_text(bert: tuple[Path, Any, Any], tmp_path: Path) -> None:
    from heedful.training.tasks import evaluate_model

    file = tmp_path / "test.txt"
    file.write_text("\n".join(TEXTS * 4))
    scores = evaluate_model(heedful.load(bert[0]), [file])
    assert scores["tokens"] > 20
    assert 0 <= scores["accuracy"] <= 1

"""An imported question answering model predicts the same span as `transformers`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import heedful
from heedful.inference.question_answerer import DEFAULT_ANSWER_TOKENS

pytestmark = pytest.mark.usefixtures("quiet_transformers")

QUESTION, PASSAGE = "Who opened the café?", "In 1990 ZOË Müller opened the Café  Central, in a house by the river."
WORDS = [*"?,.a", "who", "opened", "the", "cafe", "in", "1990", "zoe", "muller", "central", "house", "by", "river"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def rust() -> Tokenizer:
    vocabulary = {word: index for index, word in enumerate(SPECIAL + WORDS)}
    rust = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    rust.add_special_tokens(SPECIAL)
    rust.normalizer = normalizers.BertNormalizer(lowercase=True)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return rust


@pytest.fixture(scope="module")
def theirs(rust: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theirs")
    torch.manual_seed(3)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
    config = transformers.BertConfig(vocab_size=rust.get_vocab_size(), max_position_embeddings=64, **size)
    transformers.BertForQuestionAnswering(config).eval().save_pretrained(folder)
    rust.save(str(folder / "tokenizer.json"))
    roles = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    (folder / "special_tokens_map.json").write_text(json.dumps(roles))
    return folder


def best_of_theirs(folder: Path, rust: Tokenizer) -> tuple[str, float]:
    read = rust.encode(QUESTION, PASSAGE)
    model = transformers.BertForQuestionAnswering.from_pretrained(folder).eval()
    with torch.inference_mode():
        output = model(torch.tensor([read.ids]), token_type_ids=torch.tensor([read.type_ids]))
    start, end = output.start_logits[0].tolist(), output.end_logits[0].tolist()
    passage_positions = [index for index, which in enumerate(read.sequence_ids) if which == 1]
    spans = [(i, j) for i in passage_positions for j in passage_positions if i <= j < i + DEFAULT_ANSWER_TOKENS]
    i, j = max(spans, key=lambda span: start[span[0]] + end[span[1]])
    text = PASSAGE[read.offsets[i][0] : read.offsets[j][1]]
    return text, start[i] + end[j] - start[0] - end[0]


def test_best_span_equals_transformers(theirs: Path, rust: Tokenizer) -> None:
    text, score = best_of_theirs(theirs, rust)
    for load in (heedful.load, heedful.QuestionAnswerer.load):
        trained = load(theirs)
        assert trained.task == "answer"
        span = trained.answer(QUESTION, PASSAGE).best
        assert span is not None
        assert span.text == text == PASSAGE[span.start : span.end]
        assert span.score == pytest.approx(score, abs=1e-4)

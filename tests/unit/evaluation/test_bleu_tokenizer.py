"""sacreBLEU's tokenizer follows the script of the references, and the signature names it."""

from __future__ import annotations

import pytest

from heedful.errors import UsageError
from heedful.evaluation import bleu_tokenizer
from heedful.evaluation.bleu_tokenizer import BleuTokenizer, choose_bleu_tokenizer
from heedful.evaluation.text_metrics import text_scores

JAPANESE = ["私は学生です。", "猫がマットの上に座った。", "2024年1月5日金曜日"]
TEXTS = {
    "13a": ["The cat sat.", "Der Hund bellt.", "Кошка сидит."],
    "ja-mecab": JAPANESE,
    "zh": ["我是学生。", "猫坐在垫子上。", "2024年1月5日星期五"],
    "ko-mecab": ["저는 학생입니다.", "고양이가 앉았다."],
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_tokenizer_follows_the_script(name: str) -> None:
    assert choose_bleu_tokenizer(TEXTS[name]) == BleuTokenizer(name)
    scores = text_scores(TEXTS[name], TEXTS[name])
    assert scores["bleu"] == pytest.approx(100)
    assert f"tok:{name}" in scores["bleu_signature"]


@pytest.mark.parametrize("text", ["ฉันเป็นนักเรียน", "ខ្ញុំជាសិស្ស", "ຂ້ອຍເປັນນັກຮຽນ", "ကျွန်တော်ကျောင်းသားပါ"])
def test_southeast_asian_scripts_are_scored_in_characters(text: str) -> None:
    scores = text_scores([text[:-1], text], [text, text])
    assert "tok:char" in scores["bleu_signature"]
    assert 50 < scores["bleu"] < 100


def test_the_training_text_decides_between_japanese_and_chinese() -> None:
    kanji = ["東京都", "日本語学校", "山田太郎"]
    assert choose_bleu_tokenizer(kanji).name == "zh"
    chosen = choose_bleu_tokenizer(kanji, trained="ja-mecab")
    assert chosen.name == "ja-mecab"
    assert chosen.note == "BLEU of ja-mecab tokens, as in training; the script of these references suggests zh"
    assert choose_bleu_tokenizer(kanji, "zh", trained="ja-mecab") == BleuTokenizer("zh")
    assert choose_bleu_tokenizer(JAPANESE, trained="ja-mecab") == BleuTokenizer("ja-mecab")


def test_a_missing_tokenizer_falls_back_to_characters_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bleu_tokenizer, "unavailable", lambda name: "no MeCab" if name == "ja-mecab" else "")
    scores = text_scores(JAPANESE, JAPANESE)
    assert "tok:char" in scores["bleu_signature"]
    assert "pip install 'heedful[ja]'" in scores["bleu_note"]
    with pytest.raises(UsageError, match=r"pip install 'heedful\[ja\]'"):
        choose_bleu_tokenizer(JAPANESE, "ja-mecab")


def test_a_requested_tokenizer_is_used_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_bleu_tokenizer(JAPANESE, "char") == BleuTokenizer("char")
    monkeypatch.setattr(bleu_tokenizer, "unavailable", lambda name: "no network")
    with pytest.raises(UsageError, match="'flores200' is not installed: no network"):
        choose_bleu_tokenizer(JAPANESE, "flores200")
    with pytest.raises(UsageError, match="unknown BLEU tokenizer 'ja-mecb'; did you mean 'ja-mecab'"):
        choose_bleu_tokenizer(JAPANESE, "ja-mecb")

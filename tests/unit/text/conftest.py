"""A small multilingual corpus, and one tokenizer of each kind trained on it."""

from __future__ import annotations

import pytest

from heedful.text.tokenizer import Tokenizer, TokenizerConfig

CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "She talked and talked, and we walked home talking about walking.",
    "I don't know what she's asking; they'll ask again at 10:30.",
    'He said "well-known facts", then left (for Paris) with 3.14 euros.',
    "An unhappy reader was reading an unreadable letter, unhappily.",
    "Two dogs are playing in the snow while a man is watching.",
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Der Hund läuft über die Wiese, und die Hunde laufen über die Wiesen.",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
    "Zwei Hunde spielen im Schnee, während ein Mann zuschaut.",
    "L'homme qu'il a vu hier n'était pas l'ami de l'école.",
    "Deux chiens jouent dans la neige pendant qu'un homme les regarde.",
    "¿Dónde están los niños? ¡Están jugando en el jardín!",
    "Мама мыла раму, а папа читал книгу о собаках и кошках.",
    "Το γρήγορο καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.",
    "我们在北京的一家咖啡馆见面,然后去北京大学。",
    "他在北京大学学习,她在北京的咖啡馆工作。",
    "東京は日本の首都です。京都は昔の首都でした。",
    "私は東京の大学で日本語を勉強しています。",
    "ฉันรักภาษาไทย และฉันกำลังเรียนภาษาไทยที่มหาวิทยาลัย",
    "มหาวิทยาลัยอยู่ในกรุงเทพ และฉันอยู่ในกรุงเทพ",
    "नमस्ते दुनिया, आप कैसे हैं? मैं हिन्दी सीख रहा हूँ।",
    "مرحبا بالعالم، كيف حالك اليوم؟",
    "Write <s> to start, </s> to end, <pad> to pad; <s>, </s>, <s> and <mask> again.",
]

KINDS = ["byte_bpe", "unigram", "wordpiece", "words", "characters"]


def make(kind: str, **settings: object) -> Tokenizer:
    return Tokenizer.train(CORPUS, TokenizerConfig(kind=kind, **{"vocabulary": 600, **settings}))


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    return {kind: make(kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers[request.param]

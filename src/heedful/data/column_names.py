"""Names of columns: which languages they name, which two hold a pair, and whether a table's first row is a header.

A header taken for an example teaches the model nonsense, and an example taken for a header is lost, so a row is a
header only on evidence: known names, languages, or cells unlike everything below them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache

from heedful.data.unicode_scripts import letter_of, script_of, unspaced_letters

SOURCE = (
    "source", "src", "input", "original", "orig", "from", "ausgangstext", "quelltext", "quelle", "fuente", "fonte",
    "origem", "brontekst", "bron", "оригинал", "źródło", "zdroj", "källa", "kaynak", "المصدر", "原文", "原句", "源语言",
    "源文本", "元の文", "원문", "ต้นฉบับ",
)  # fmt: skip
TARGET = (
    "target", "tgt", "trg", "output", "translation", "translated", "reference", "to", "zieltext", "übersetzung", "ziel",
    "cible", "traduction", "traducción", "traduzione", "tradução", "vertaling", "doeltekst", "doel", "перевод",
    "переклад", "tłumaczenie", "překlad", "översättning", "çeviri", "hedef", "الترجمة", "ترجمة", "译文", "译句", "翻译",
    "翻譯", "译", "目标语言", "目标文本", "訳文", "訳", "翻訳", "번역", "번역문", "คำแปล",
)  # fmt: skip
TEXT = (
    "text", "sentence", "content", "review", "comment", "message", "body", "document", "tweet", "utterance", "query",
    "headline", "description", "title",
)  # fmt: skip
TEXT_PAIRS = (("text_a", "text_b"), ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"))
LABEL = ("label", "class", "category", "sentiment", "gold_label", "intent", "emotion", "polarity", "target")
LABELS = ("labels", "classes", "categories", "tags")
PASSAGE = ("passage", "context")
ANSWER = ("answers", "answer")

KNOWN = {
    *SOURCE, *TARGET, *TEXT, *LABEL, *LABELS, *PASSAGE, *ANSWER, *(name for pair in TEXT_PAIRS for name in pair),
    "question", "id", "idx", "index", "key", "line", "score", "lang", "language", "locale", "split", "answer_start",
    "author", "user", "url", "domain", "date", "attribution", "license", "note", "notes", "rating", "stars", "word",
    "phrase", "meaning", "definition", "words", "sentences", "phrases", "translations", "texts", "string", "col",
    "column", "satz", "sätze", "wort", "frase", "frases", "oración", "texte", "texto", "testo", "zin",
    "tekst", "zdanie", "cümle", "metin", "текст", "предложение", "исходный", "текстовый", "句子", "文本", "文", "例文",
    "テキスト", "문장", "텍스트", "ประโยค", "ข้อความ", "ภาษา", "النص", "جملة",
}  # fmt: skip
LOCALES = """
en de fr es it pt nl ru uk pl cs sk sl hr sr bg ro hu fi sv da nb no et lv lt el tr ar fa he hi bn ta te th vi id ms ja
ko zh ka hy sw af is ga cy eu ca gl mk sq az kk uz mn ne si km lo my ur
"""
"""Languages whose names of languages are known too: `Englisch`, `英语`."""
LONG_CODES = """
eng:en deu:de ger:de fra:fr fre:fr spa:es ita:it por:pt nld:nl dut:nl rus:ru ukr:uk pol:pl ces:cs cze:cs slk:sk slo:sk
slv:sl hrv:hr srp:sr bul:bg ron:ro rum:ro hun:hu fin:fi swe:sv dan:da nor:no nob:nb est:et lav:lv lit:lt ell:el gre:el
tur:tr ara:ar fas:fa per:fa heb:he hin:hi ben:bn tam:ta tel:te tha:th vie:vi ind:id msa:ms jpn:ja kor:ko zho:zh chi:zh
cmn:zh kat:ka hye:hy swa:sw afr:af isl:is gle:ga cym:cy eus:eu cat:ca glg:gl mkd:mk sqi:sq aze:az kaz:kk uzb:uz mon:mn
nep:ne sin:si khm:km lao:lo mya:my urd:ur
"""
"""ISO 639-3, and 639-2 where it differs, as 639-1."""
CODE = re.compile(r"([a-z]{2,3}|[A-Z]{2,3})(?:[-_](?:[A-Za-z]{4}|[A-Z]{2}|[a-z]{2}))?")
PARTS = re.compile(r"[\s_.:()\[\]/-]+")
ENDS_SENTENCE = re.compile(r"[.!?…。！？।؟]['\"”’»)]*$")
ORDINAL = re.compile(r"([^\W\d]{1,6}[ _]?(?=\d)|)([01Aa])")
"""The first of names such as V1, V2 or A, B."""
MIN_ROWS = 10
"""Minimum number of rows that the first row is compared with."""


def language(name: str) -> str | None:
    """The language that a column's name consists of or contains (`de`, `German`, `text_de`), as ISO 639-1."""
    if code := _language(name.strip()):
        return code
    if name.strip().endswith("."):  # "No." is a number, not Norwegian
        return None
    parts = [part for part in PARTS.split(name.strip()) if part]
    named = [part for part in parts if len(part) > 3 and _language(part)]
    if len(named) == 1:
        parts = [part for part in parts if part in named or len(part) > 2]  # German (DE), Portuguese (BR)
    codes = {code for part in parts if (code := _language(part))}
    others = [part for part in parts if not _language(part)]
    return codes.pop() if len(codes) == 1 and all(part.casefold() in KNOWN for part in others) else None


def is_known(name: str) -> bool:
    """Whether a name is a usual one, or consists of usual ones: `Source text`, `sentence_2`."""
    folded = name.strip().casefold()
    parts = [part for part in PARTS.split(folded) if part and not part.isdecimal()]
    if folded in KNOWN:
        return True
    return bool(parts) and all(part in KNOWN or part.rstrip("0123456789") in KNOWN for part in parts)


def _sides(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names that are among the known ones, or else those that combine a known one with other usual names."""
    exact = [name for name in names if name.strip().casefold() in known]
    return exact or [
        name for name in names if is_known(name) and any(part in known for part in PARTS.split(name.casefold()))
    ]


def _language(name: str) -> str | None:
    if match := CODE.fullmatch(name):
        code = match[1].lower()
        return _language_names().get(code)
    if name.isascii() and len(name) < 3:
        return None
    return _language_names().get(name.casefold()) or _unspaced_language(name)


def _unspaced_language(name: str) -> str | None:
    """The language in a name without spaces, beside a usual word: `英文`, `中文句子`, `ภาษาไทย`."""
    if not unspaced_letters(name):
        return None
    names = _language_names()
    cuts = [(name[:at], name[at:]) for at in range(1, len(name))]
    codes = [
        names.get(part) or names.get(f"{part}语") for cut in cuts for part, rest in (cut, cut[::-1]) if rest in KNOWN
    ]
    return next(filter(None, codes), None)


@cache
def _language_names() -> dict[str, str]:
    """Languages by code and by name, in many languages."""
    from babel import Locale

    names = {str(code): str(code) for code in Locale("en").languages if len(str(code)) == 2}
    names |= dict(pair.split(":") for pair in LONG_CODES.split())
    for locale in LOCALES.split():
        languages = Locale(locale).languages
        for code in LOCALES.split():
            if code in languages:
                names.setdefault(languages[code].casefold(), code)
    return names


def pair_columns(names: Sequence[str]) -> tuple[str, str] | None:
    """The columns of a pair: source and target by name, or two languages in their order, or the only two columns."""
    lowered = {name.strip().casefold(): name for name in reversed(names)}
    if {"source", "target"} <= lowered.keys():
        return lowered["source"], lowered["target"]
    languages = [name for name in names if name.casefold() not in KNOWN and language(name)]  # id: not Indonesian
    if len(languages) == 2 and language(languages[0]) != language(languages[1]):
        return languages[0], languages[1]
    sources, targets = _sides(names, SOURCE), _sides(names, TARGET)
    if len(sources) == len(targets) == 1 and sources != targets:
        return sources[0], targets[0]
    return (names[0], names[1]) if len(names) == 2 else None


def is_header(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row of a table names its columns, judged by itself and by the rows below it."""
    cells = [cell.strip() for cell in first]
    named = [cell for cell in cells if cell]
    columns = [[row[index].strip() for row in rows if len(row) == len(first)] for index in range(len(first))]
    if _are_ordinals(named) and not any(map(_are_numbers, columns[-len(named) :])):
        return named[0] not in ("A", "a") or len(rows) >= MIN_ROWS  # letters are also texts
    above_labels = any(_unlike_labels(cell, column) for cell, column in zip(cells, columns, strict=True) if cell)
    bare = [cell.rstrip("?!") for cell in cells] if above_labels else cells  # a column of labels may be a question
    may_be_names = all(map(_may_name, bare, columns))
    if not named or len(set(named)) < len(named) or not may_be_names:
        return False
    if _has_known_names(named, columns) or any(map(_in_other_script, cells, columns)):
        return True
    if sum(bool(is_known(name) or language(name)) for name in named) == 1 and may_be_header(named, rows):
        return True
    if any(_unlike_column(cell, column) for cell, column in zip(cells, columns, strict=True) if cell):
        return True
    texts = [len(set(column)) > len(column) / 2 for column in columns]
    return any(texts) and above_labels


def may_be_header(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a first row without evidence of being a header still looks like one: short, above sentences."""
    cells = [cell.strip() for row in rows for cell in row if cell.strip()]
    sentences = sum(bool(ENDS_SENTENCE.search(cell)) for cell in cells)
    return (
        len(rows) >= MIN_ROWS
        and sentences >= 0.8 * len(cells)
        and all(_may_be_name(cell) and len(cell.split()) <= 2 for cell in first)
    )


def is_unlike_text(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a first row of words stands above sentences that contain none of them."""
    below = "\n".join(cell.casefold() for row in rows for cell in row)
    return may_be_header(first, rows) and not any(cell.strip().casefold() in below for cell in first)


def _may_name(cell: str, column: Sequence[str]) -> bool:
    """Whether a cell may name a column. Above numbers, so may `#` and `Nr.`."""
    return not cell or _may_be_name(cell) or (len(cell) <= 20 and not _is_number(cell) and _are_numbers(column))


def _are_ordinals(cells: Sequence[str]) -> bool:
    """Whether cells are 0, 1, …, V1, V2, … or A, B, …, as libraries name columns without names."""
    if len(cells) < 2 or not (match := ORDINAL.fullmatch(cells[0])):
        return False
    prefix, first = match[1], match[2]
    return list(cells) == [prefix + _after(first, steps) for steps in range(len(cells))]


def _after(ordinal: str, steps: int) -> str:
    return str(int(ordinal) + steps) if ordinal.isdecimal() else chr(ord(ordinal) + steps)


def _in_other_script(cell: str, column: Sequence[str]) -> bool:
    """Whether a name is in a script that is nowhere below it; Latin names are also found in text of other scripts."""
    if cell.isascii() or len(cell) < 2 or len(column) < MIN_ROWS or (script := script_of([cell])) == "Latin":
        return False  # Ω is a text as well
    return not letter_of(script).search("\n".join(column))


def _are_numbers(column: Sequence[str]) -> bool:
    return len(column) >= 2 and any(column) and all(_is_number(value) for value in column if value)


def _may_be_name(cell: str) -> bool:
    return len(cell) <= 40 and "\n" not in cell and not ENDS_SENTENCE.search(cell) and any(map(str.isalpha, cell))


def _has_known_names(names: Sequence[str], columns: Sequence[list[str]]) -> bool:
    """Two known names or more, or two different languages. In a word list `it, es` may be English and German."""
    known = sum(map(is_known, names))
    languages = [code for name in names if not is_known(name) and (code := language(name))]
    if known >= min(2, len(names)):
        return True
    if len(set(languages)) < 2:
        return bool(known and languages) and len(names) > 2
    cells = [cell for column in columns for cell in column]
    is_word_list = bool(cells) and sum(" " in cell for cell in cells) < 0.2 * len(cells)
    bare = all(len(name) == 2 and name.islower() for name in names)
    return not (bare and is_word_list and "en" not in languages)


def _unlike_column(cell: str, column: Sequence[str]) -> bool:
    """Whether a first cell differs from its column: a word above numbers, or an identifier above text."""
    if _are_numbers(column):
        return not _is_number(cell)
    return (
        len(column) >= 2
        and bool(re.fullmatch(r"[A-Za-z]+(?:_[A-Za-z0-9]+)+", cell))
        and not any("_" in value for value in column)
    )


def _unlike_labels(cell: str, column: Sequence[str]) -> bool:
    """Whether a first cell is a unique value above a few single words that repeat."""
    counts = Counter(column)
    repeat = len(column) >= MIN_ROWS and len(counts) <= len(column) / 4 and min(counts.values()) > 1
    return repeat and cell not in counts and not any(" " in value for value in counts)


def _is_number(cell: str) -> bool:
    return bool(re.fullmatch(r"[+-]?\d+(?:[.,]\d+)?(?:[eE][+-]?\d+)?", cell))

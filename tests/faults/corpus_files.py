"""Generated corpora for the fuzz of readers: encodings, separators, columns, headers, languages and damage."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from random import Random
from xml.sax.saxutils import escape

SENTENCES = {
    "en": ("The {} is near the {}.", "house river garden school train window market bridge"),
    "de": ("Das {} steht neben dem {}!", "Haus Fluß Gebäude Zug Fenster Brötchen Tor Boot"),
    "fr": ("La {} est près de la {} ?", "maison rivière école fenêtre forêt gare rue ville"),
    "ru": ("Этот {} стоит там, где {}.", "дом поезд мост город сад рынок лес порт"),
    "ja": ("{}は{}の近くです。", "家 川 学校 電車 窓 市場 橋 庭"),
    "el": ("Το {} είναι κοντά στο {}.", "σπίτι ποτάμι σχολείο τρένο παράθυρο δάσος"),
    "ar": ("{} قريب من {}.", "البيت النهر القطار السوق الجسر"),
}
"""A pattern and words for each language; a sentence of one language is found by its words."""
NAMES = {
    "en": "English", "de": "German", "fr": "French", "ru": "Russian", "ja": "Japanese", "el": "Greek", "ar": "Arabic"
}  # fmt: skip
SEPARATORS = {"tsv": "\t", "txt": "\t", "csv": ",", "semicolon": ";", "tabbed": "\t"}
ENCODINGS = ("utf-8", "utf-8", "utf-8", "utf-8-sig", "crlf", "latin-1", "utf-16", "cr")
DAMAGES = ("none", "none", "none", "none", "truncated", "blank", "ragged", "nul", "quote", "bytes", "empty", "binary")
HEADERS = ("none", "usual", "codes", "names", "affixed")
PACKINGS = ("", "", "", ".gz", ".xz")


@dataclass(frozen=True)
class CorpusFile:
    """A generated file, the pairs written to it, and how it was damaged."""

    path: Path
    pairs: list[tuple[str, str]]
    description: str
    is_intact: bool
    """UTF-8 and not damaged: the pairs must be read."""


def sentences(language: str, count: int, random: Random) -> list[str]:
    pattern, words = SENTENCES[language]
    return [pattern.format(*random.sample(words.split(), 2)) + f" {number}" * (number % 3) for number in range(count)]


def corpus_file(folder: Path, number: int) -> CorpusFile:
    """The file of this number; the same number gives the same file."""
    random = Random(number)
    source, target = random.sample(sorted(SENTENCES), 2)
    count = random.choice((40, 62, 120))
    pairs = list(zip(sentences(source, count, random), sentences(target, count, random), strict=True))
    kind = random.choice(("tsv", "txt", "csv", "semicolon", "tabbed", "jsonl", "tmx"))
    if random.random() < 0.2:
        pairs[0] = (SENTENCES[source][1].split()[0], SENTENCES[target][1].split()[0])  # short, but no header
    header, encoding, damage = random.choice(HEADERS), random.choice(ENCODINGS), random.choice(DAMAGES)
    before, after, packing = random.choice((0, 0, 0, 1)), random.choice((0, 0, 1, 2)), random.choice(PACKINGS)
    extra = [f"CC-BY tatoeba.org #{number} (user{number % 7})" for number in range(count)]
    if kind == "tmx":
        text = translation_memory(pairs, source, target)
    elif kind == "jsonl":
        keys = {"usual": ("source", "target"), "names": (NAMES[source], NAMES[target])}.get(header, (source, target))
        rows = [dict(zip(keys, pair, strict=True)) for pair in pairs]
        rows = [{"translation": row} for row in rows] if header == "affixed" else rows
        text = "".join(json.dumps(row, ensure_ascii=number % 2 == 0) + "\n" for row in rows)
    else:
        rows_of_cells = [
            [*[str(1000 + n)] * before, *pair, *[extra[n]] * after] for n, pair in enumerate(pairs)
        ]  # fmt: skip
        first = [*["id"] * before, *header_names(header, source, target), *[f"note{n}" for n in range(after)]]
        text = table([*([first] if header != "none" else []), *rows_of_cells], SEPARATORS[kind], kind)
    suffix = {"semicolon": "csv", "tabbed": "csv"}.get(kind, kind)
    path = folder / f"corpus{number}.{suffix}{packing}"
    data = damaged(encoded(text, encoding), damage, random)
    path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress}.get(packing, bytes)(data))
    described = (
        f"{kind}{packing} {source}-{target} {header} {encoding} {damage} before={before} after={after} n={count}"
    )
    return CorpusFile(path, pairs, described, encoding in ("utf-8", "utf-8-sig", "crlf") and damage == "none")


def header_names(header: str, source: str, target: str) -> tuple[str, str]:
    return {
        "usual": ("source", "target"),
        "codes": (source, target),
        "names": (NAMES[source], NAMES[target]),
        "affixed": (f"text_{source}", f"text_{target}"),
    }.get(header, ("", ""))


def table(rows: list[list[str]], separator: str, kind: str) -> str:
    if kind in ("tsv", "txt"):
        return "".join("\t".join(row) + "\n" for row in rows)
    stream = io.StringIO()
    csv.writer(stream, delimiter=separator, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def translation_memory(pairs: list[tuple[str, str]], source: str, target: str) -> str:
    units = "".join(
        f'<tu><tuv xml:lang="{source}"><seg>{escape(a)}</seg></tuv>\n<tuv xml:lang="{target}"><seg>{escape(b)}</seg>'
        "</tuv></tu>\n"
        for a, b in pairs
    )
    return f'<tmx version="1.4"><header srclang="{source}"/><body>\n{units}</body></tmx>\n'


def encoded(text: str, encoding: str) -> bytes:
    if encoding == "crlf":
        return text.replace("\n", "\r\n").encode()
    if encoding == "cr":
        return text.replace("\n", "\r").encode()
    try:
        return text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode("gb18030")


def damaged(data: bytes, damage: str, random: Random) -> bytes:
    lines, at = data.split(b"\n"), random.randrange(3, 20)
    if damage == "truncated":
        return data[: len(data) * 2 // 3]
    if damage in ("empty", "binary"):
        return b"" if damage == "empty" else random.randbytes(5000)
    if at < len(lines):
        changes = {"blank": b"", "ragged": b"only one cell", "nul": b"a\0" + lines[at], "quote": b'"' + lines[at]}
        changes["bytes"] = b"\xff\xfe\xfa" + lines[at]
        lines[at] = changes.get(damage, lines[at])
    return b"\n".join(lines)

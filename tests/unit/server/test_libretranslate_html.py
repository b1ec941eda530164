"""Pages are split into sentences and joined again: markup stays as it is, and what a model writes is text."""

from __future__ import annotations

import time

import pytest

from heedful.server.libretranslate.html_translation import join_html, split_html

DATA = "data:image/png;base64," + "A" * 30_000
PAGES = {
    "nested": ("<div><p>One <b>two <i>three</i></b>.</p><ul><li>a</li></ul></div>", ["One two three.", "a"]),
    "values with brackets": ('<p title="a > b" data-x=\'<b>\'>Text <a href="x<y">link</a></p>', ["Text link"]),
    "a picture in the page": (f"<p>before <img src='{DATA}'> after</p>", ["before  after"]),
    "an apostrophe in a tag": ("<p it's>don't</p><p>x' y</p>", ["don't", "x' y"]),
    "a quote that is not closed": ('<p class="x>one</p><p>two</p>', ["one", "two"]),
    "long comment": (f"<p>a <!-- <p>{'x ' * 4_000}</p> -->b</p>", ["a b"]),
    "open comment": ("<p>a</p><!-- b <p>c</p>", ["a"]),
    "short comment": ("<!-->a<!---->b", ["ab"]),
    "cdata": ("<p>a <![CDATA[ x > y <b> ]]> b</p>", ["a", "b"]),
    "script": ("<p>a</p><script>if (a < b && '</p>') {}</script><style>p > b {}</style><p>b</p>", ["a", "b"]),
    "script with a tag inside": ("<script>s = '<script>'; t = '<b>';</script><p>b</p>", ["b"]),
    "open script": ("<p>a</p><SCRIPT>x <p>b</p>", ["a"]),
    "void": ("one<br>two<br/>three<hr class=notranslate>four", ["one", "two", "three", "four"]),
    "a name to keep": ("I like <span translate='no'>Heed<b>ful</b></span> a lot", ["I like  a lot"]),
    "a part to keep": ("<div class='x notranslate'>a<div>b</div>c</div>d", ["d"]),
    "a part that is open": ("a<div translate=no>b<p>c</p>", ["a"]),
    "translate=yes": ("<p translate=yes class=nottranslated>a</p>", ["a"]),
    "code": ("<pre> a </pre><p>Press <kbd>Ctrl</kbd></p><textarea><b></textarea>", ["Press Ctrl"]),
    "upper case": ("<P>One <B CLASS=X>two</B></P>", ["One two"]),
    "doctype": ("<!DOCTYPE html>\n<html><head><title>T</title></head><body>\n a \n</body></html>\n", ["T", "a"]),
    "entities": (
        "<p>Tom &amp; Jerry &lt;3&nbsp;&#8364;</p><p>&nbsp;&#8364;</p>",
        ["Tom &amp; Jerry &lt;3&nbsp;&#8364;"],
    ),
    "no letters": ("<p> – </p> <b></b> \n", []),
    "empty": ("", []),
    "text": ("only text", ["only text"]),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_keeps_all_but_its_sentences(name: str) -> None:
    page, sentences = PAGES[name]
    pieces = split_html(page)
    texts = [piece.text for piece in pieces if piece.translate]
    assert join_html(pieces, texts) == page
    assert len(texts) == len(sentences)
    for piece, text, sentence in zip((each for each in pieces if each.translate), texts, sentences, strict=True):
        for tag in piece.tags:
            text = text.replace(tag, "")
        assert text == sentence
        assert len(piece.text) < 60  # no attribute is given to the model


def test_tags_are_where_the_translation_has_them() -> None:
    pieces = split_html('<p>On <b class="x">Monday</b> <a href="a&b">here</a>.</p>')
    assert [piece.text for piece in pieces if piece.translate] == ['On <b i="0">Monday</b> <a i="2">here</a>.']
    joined = join_html(pieces, ['<a i="2">Hier</a> am <b i="0">Montag</b>.'])
    assert joined == '<p><a href="a&b">Hier</a> am <b class="x">Montag</b>.</p>'


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("<script <b>x</b>", "&lt;script &lt;b&gt;x"),
        ('<b i="0">x', "x"),
        ('<b i="0"><b i="0">x</b></b>', "x"),
        ('<b i="9">x</b>', '&lt;b i="9"&gt;x'),
        ("a < b & c > d &amp; e", "a &lt; b &amp; c &gt; d &amp; e"),
        ('<b i="0">x</b><img src=x onerror=alert(1)>', "<b onclick=y>x</b>&lt;img src=x onerror=alert(1)&gt;"),
        ("", ""),
    ],
)
def test_what_a_model_writes_is_text(written: str, shown: str) -> None:
    """Tags that the source does not have are text; those of a translation without exactly the source's are left out."""
    assert join_html(split_html("<p><b onclick=y>a</b> b</p>"), [written]) == f"<p>{shown}</p>"


@pytest.mark.parametrize(
    "unit",
    ["<", "<a ", "<a ='>'", "<a =\"'", "</", "<!", "<!--", "<![CDATA[", "<script>", "<b translate=no>", '<a class="',
     "<b>x</b>", "&", "<p class=' ", " translate "],
)  # fmt: skip
@pytest.mark.parametrize("end", ["", ">", "='>'", "'>", '">'])
def test_every_page_is_split_in_linear_time(unit: str, end: str) -> None:
    start = time.process_time()
    pieces = split_html("<p " + unit * 30_000 + end)
    join_html(pieces, [piece.text for piece in pieces if piece.translate])
    assert time.process_time() - start < 2.0  # quadratic: minutes

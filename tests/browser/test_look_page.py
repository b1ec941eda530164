"""The exported pages of a look and of a comparison, in a browser: offline, by keyboard, whatever the text holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.loading import wrap_model
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_kinds import TokenizerConfig

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
STRANGE = "<b>Mars</b> 👩‍🚀 漢字 \x1b[31m \u202e $x$ </script><script>document.title = 'bad'</script>"
HEBREW = "שלום עולם טוב"
TEXTS = [STRANGE, HEBREW, "two men ride a bicycle"]
Open = Callable[[Path], tuple[Any, list[str]]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens a file; returns the page, and what went wrong in it or was requested beside it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")

    def open_page(file: Path) -> tuple[Any, list[str]]:
        page, problems = context.new_page(), []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: problems.append(request.url) if request.url != file.as_uri() else None)
        page.goto(file.as_uri())
        return page, problems

    yield open_page
    context.close()


@pytest.fixture(scope="module")
def translator() -> Any:
    tokenizer = Tokenizer.train(TEXTS * 5, TokenizerConfig(kind="words", vocabulary=80))
    torch.manual_seed(0)
    model = heedful.build("laptop-translator", vocabulary=len(tokenizer), width=32, heads=4, layers=2).eval()
    return wrap_model(model, (tokenizer,))


def test_a_look_is_read_by_keyboard_and_asks_the_network_for_nothing(
    translator: Any, open_page: Open, tmp_path: Path
) -> None:
    look = translator.look(TEXTS[2], "two men ride", lens=True)
    page, problems = open_page(look.save(tmp_path / "look.html"))
    assert page.locator("#heads .thumb canvas").count() == 2 * 4 * 3
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    weights = look.alignment.weights[1]
    best = int(weights.argmax())
    label = (*look.inputs.words, "∅")[best]
    first = page.locator("#readout").text_content().split(" · ")[0].replace("\u2068", "").replace("\u2069", "")
    name, value = first.removeprefix("men → ").rsplit(" ", 1)
    assert (name, float(value)) == (label, pytest.approx(float(weights[best]), abs=1e-3))
    assert page.locator("#lit path").count() >= 1
    page.keyboard.press("Shift+ArrowRight")
    assert page.locator("#reading-title").text_content() == "decoder.0.cross · head 0"
    page.keyboard.press("ArrowDown")
    assert page.locator("#reading-title").text_content() == "decoder.1.cross · head 0"
    page.keyboard.press("w")
    assert page.locator("#rows .chip").all_text_contents() == ["two", "men", "ride", "</s>"]
    assert page.locator("#layers tbody tr").count() == 3
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#keys").is_visible()
    page, more_problems = open_page(look.save(tmp_path / "head.html", part="encoder.1.attention", head=2))
    assert page.locator("#reading-title").text_content() == "encoder.1.attention · head 2"
    assert problems + more_problems == []


@pytest.mark.parametrize("task", ["translate", "generate"])
def test_text_is_shown_as_it_is_and_right_to_left_text_from_the_right(
    translator: Any, open_page: Open, tmp_path: Path, task: str
) -> None:
    if task == "generate":
        tokenizers = translator.tokenizers
        model = wrap_model(heedful.build("recurrent-writer", vocabulary=len(tokenizers[0]), width=16), tokenizers)
        page, problems = open_page(model.look(STRANGE, STRANGE).save(tmp_path / "look.html"))
        assert "This model has no attention." in page.locator("#heads").text_content()
        assert problems == []
        return
    page, problems = open_page(translator.look(HEBREW, STRANGE).save(tmp_path / "look.html"))
    assert page.title().startswith("translator: ")
    assert page.locator("#rows .chip").first.text_content() == "<b>Mars</b>"
    assert r"\x1b[31m" in page.locator("#rows .chip").all_text_contents()
    assert page.locator("b", has_text="Mars").count() == 0
    boxes = [chip.bounding_box()["x"] for chip in page.locator("#columns .chip").all()]
    assert boxes == sorted(boxes, reverse=True)
    assert problems == []


def test_a_comparison_links_the_words_of_the_input(translator: Any, open_page: Open, tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = heedful.build("recurrent-translator", vocabulary=len(translator.tokenizers[0]), width=32).eval()
    other = wrap_model(network, translator.tokenizers)
    page, problems = open_page(heedful.compare(translator, other, TEXTS[2]).save(tmp_path / "compare.html"))
    assert page.locator("#sides > .card").count() == 2
    page.keyboard.press("ArrowRight")
    assert page.locator("#inputs .chip[aria-pressed=true]").text_content() == "two"
    page.keyboard.press("w")
    assert page.locator("#unit").text_content() == "tokens"
    assert problems == []

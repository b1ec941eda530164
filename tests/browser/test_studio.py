"""The studio as people use it: every view in a real browser, on trained models."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import httpx
import pytest
from PIL import Image

import heedful
from heedful.server.server_settings import ServerSettings
from heedful.studio.studio_app import create_studio_app
from served import running

VIEWS = ("use", "look", "switch", "steps", "train?run=dates", "compare", "vectors", "lab", "lessons")
READY = "() => !document.querySelector('main [aria-busy=true], main .skeleton')"
DATE = "9 stycznia 1923"
TEXT = f"text={quote(DATE)}"
OFF = quote(json.dumps([{"kind": "ablate", "part": "positions"}]))
TOKEN = "a token of the tests, 32 letters or more"
REPORTS = Path(__file__).parents[2] / "docs/lab"
STATE = """[...document.querySelectorAll('main [aria-pressed=true], main [aria-checked=true], main .readout')]
.map((element) => element.textContent)"""
WITHOUT_CROSSED_OUT = """(text) => { const answer = [...document.querySelectorAll(".answer")].at(-1).cloneNode(true);
answer.querySelectorAll("del").forEach((each) => each.remove()); return answer.textContent === text; }"""
SUM_OF_MONEY = """() => [...document.querySelectorAll('[data-example="2"] b')].map((each) => each.textContent)
.join() === '0.55,−0.91,0.54,1.87'"""
TIME_OF_CLICK = """(element) => new Promise((resolve) => { const start = performance.now(); element.click();
requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - start))); })"""
TIME_OF_HOVER = TIME_OF_CLICK.replace("element.click()", 'element.dispatchEvent(new MouseEvent("mouseenter"))')
DRAWN_PIXELS = """() => { const canvas = document.querySelector(".ribbons canvas");
return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
.filter((value, index) => index % 4 === 3 && value).length; }"""
SHIFTS = """() => { window.shifted = 0; new PerformanceObserver((list) => { for (const entry of list.getEntries())
if (!entry.hadRecentInput) window.shifted += entry.value; }).observe({ type: "layout-shift", buffered: true }); }"""


SCREENS = [(1280, "light"), (360, "dark")]
OTHER_SCREENS = [
    pytest.param(*screen, marks=pytest.mark.slow) for screen in ((1280, "dark"), (768, "light"), (360, "light"))
]


@pytest.mark.parametrize(("width", "theme"), [*SCREENS, *OTHER_SCREENS])
def test_every_view_holds_still_fits_its_width_and_can_be_used_without_a_mouse(
    studio: Any, new_page: Callable[..., Any], axe: str, width: int, theme: str
) -> None:
    watched = new_page(width, theme)
    watched.page.add_init_script(f"({SHIFTS})()")
    for view in VIEWS:
        watched.page.goto("about:blank")
        page = watched.open(studio.view(f"{view}{'&' if '?' in view else '?'}{TEXT}"))
        page.wait_for_function(READY)
        if page.evaluate("window.shifted") >= 0.05:  # a run of another test may have appeared meanwhile
            page.reload()
            page.wait_for_function(READY)
        assert page.evaluate("window.shifted") < 0.05, view
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, f"{view} is {overflow} pixels wider than {width}"
        page.get_by_role("link", name="Lab", exact=True).click(trial=True)  # nothing covers the last tab
        page.evaluate(axe)
        violations = page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]
        serious = [
            (violation["id"], violation["nodes"][0]["html"][:120])
            for violation in violations
            if violation["impact"] in ("serious", "critical")
        ]
        assert not serious, (view, serious)


def test_the_first_view_is_small_and_may_run_no_inline_script(studio: Any, new_page: Callable[..., Any]) -> None:
    watched, sizes = new_page(), list[int]()
    watched.page.on("response", lambda response: sizes.append(int(response.headers.get("content-length", 0))))
    page = watched.open(studio.view(f"use?{TEXT}"))
    page.wait_for_selector(".answer .confidence")
    page.wait_for_function(READY)
    assert sum(sizes) < 200_000
    policy = httpx.get(studio.address, trust_env=False).headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy


BROKEN = (
    f"look?{TEXT}&off=[null]&pick=zz&head=q&part=decoder.0.cross&pins=:::,a&line=x",
    "train?run=dates&frame=x&curves=,,dates",
    "switch?off={&part=nothing",
    "use?chosen=x&prefix=",
    "nonsense?lesson=ZZ&v=99",
)


@pytest.mark.parametrize("view", BROKEN)
def test_an_address_that_makes_no_sense_still_opens_a_view(
    studio: Any, new_page: Callable[..., Any], view: str
) -> None:
    page = new_page().open(studio.view(view))
    page.wait_for_function(READY)
    assert not page.locator("main .error").count()


def test_on_a_phone_both_answers_stay_in_sight_while_parts_are_switched(
    studio: Any, new_page: Callable[..., Any]
) -> None:
    page = new_page(360).open(studio.view(f"switch?{TEXT}"))
    page.get_by_role("switch", name="positions of the decoder").click()
    page.wait_for_selector(".answers :text('With your switches')")
    box = page.locator(".answers :text('With your switches')").bounding_box()
    assert box["y"] + box["height"] < page.locator(".tabs").bounding_box()["y"]


def test_the_gates_of_a_recurrent_model_are_switches(studio: Any, new_page: Callable[..., Any]) -> None:
    page = new_page().open(studio.view(f"switch?model=dates-recurrent&{TEXT}"))
    page.wait_for_selector(".drawing .wires path")
    assert {"encoder.0.backward.forget", "decoder.0.output", "cross.scores", "target.tokens"} <= {
        switch.get_attribute("aria-label") for switch in page.get_by_role("switch").all()
    }
    page.get_by_role("switch", name="decoder.0.output", exact=True).click()
    translator: Any = heedful.Translator.load(studio.folder / "dates-recurrent", device="cpu")
    changed = translator.look(DATE, interventions=[heedful.Ablate("decoder.0.output")]).output_text
    page.wait_for_function(WITHOUT_CROSSED_OUT, arg=changed)


def test_a_long_text_is_drawn_in_a_window_with_a_map_of_the_whole(studio: Any, new_page: Callable[..., Any]) -> None:
    text = quote("a warm and funny film " * 14)
    page = new_page().open(studio.view(f"look?model=reviews&text={text}"))
    page.wait_for_selector(".minimap")
    assert page.locator(".ribbons .token").count() <= 2 * 41
    assert page.evaluate("document.querySelectorAll('*').length") < 1500
    page.wait_for_selector("text=widths and colors are relative to it")  # every weight is small
    assert page.evaluate(DRAWN_PIXELS) > 1000


def test_the_words_of_a_script_without_spaces_are_told_apart(studio: Any, new_page: Callable[..., Any]) -> None:
    page = new_page().open(studio.view(f"look?text={quote('2024年3月9日 土曜日')}"))
    page.wait_for_selector(".ribbons .left .token")
    assert page.locator(".ribbons .left .token").all_text_contents()[:3] == ["2024", "年", "3"]


def test_the_answer_follows_what_is_typed_and_a_word_can_be_forced(studio: Any, new_page: Callable[..., Any]) -> None:
    page = new_page().open(studio.view("use"))
    page.fill("#text", DATE)
    translator = heedful.Translator.load(studio.folder / "dates", device="cpu")
    page.wait_for_function(
        "(text) => document.querySelector('.answer')?.textContent === text", arg=translator.translate(DATE)
    )
    page.locator(".answer .confidence").first.click()
    alternative = page.locator(".bars button.link").first
    first = alternative.text_content()
    alternative.click()
    page.wait_for_function("(start) => document.querySelector('.answer')?.textContent.startsWith(start)", arg=first)
    forced = translator.translate(DATE, prefix=first)
    assert forced == page.text_content(".answer")
    page.get_by_role("button", name="Show attention").click()
    assert forced in page.locator(".notice", has_text="Given answer").text_content()


def test_words_light_up_the_words_they_came_from(studio: Any, new_page: Callable[..., Any]) -> None:
    page = new_page().open(studio.view(f"look?{TEXT}"))
    page.wait_for_selector(".ribbons .right .token")
    page.locator(".ribbons .right .token").first.hover()
    page.wait_for_selector(".ribbons svg path")
    page.wait_for_selector(".readout b")
    assert page.locator(".grid-heads[data-band=below] .band").first.is_visible()
    look = heedful.Translator.load(studio.folder / "dates", device="cpu").look(DATE)
    assert page.locator(".ribbons .left .token").count() == len(look.inputs.words) + 1  # and the end
    words = page.locator(".ribbons .right .token")
    assert min(words.nth(number).evaluate(TIME_OF_HOVER) for number in range(1, 6)) < 100
    heads = page.locator(".head-thumb")
    assert heads.count() == sum(part.heads for part in look.attention.values() if part.kind == "cross")
    heads.nth(1).click()
    page.wait_for_selector(".head-thumb[aria-pressed=true] >> nth=0")
    assert "head=1" in page.url
    page.get_by_role("button", name="weight × ‖value‖").click()
    page.wait_for_selector("text=length of the value vector, each row scaled to sum to 1")
    assert "by=value" in page.url


def test_the_keyboard_alone_pins_words_and_chooses(studio: Any, new_page: Callable[..., Any]) -> None:
    page = new_page().open(studio.view(f"look?{TEXT}"))
    page.wait_for_selector(".ribbons .right .token")
    for _ in range(6):  # at once: none is lost
        page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.hash.includes('pick=b5')")
    page.get_by_role("radio", name="words").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.activeElement.textContent === 'tokens' && location.hash.includes('tokens')")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.locator(".ribbons .right .token[tabindex='0']").focus()  # the tab key reaches one word of each row
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".ribbons svg path")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash.includes('pick=b1')")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('pick=')")


@pytest.mark.parametrize(
    "view", [f"look?{TEXT}", f"switch?{TEXT}&off={OFF}", f"steps?{TEXT}", "vectors?model=reviews&q=warm"]
)
def test_what_a_view_shows_is_saved(studio: Any, new_page: Callable[..., Any], tmp_path: Path, view: str) -> None:
    page = new_page().open(studio.view(view))
    page.wait_for_function(READY)
    files = {}
    for kind in ("PNG", "SVG", "JSON"):
        with page.expect_download() as download:
            page.get_by_role("button", name=kind, exact=True).last.click()
        files[kind] = tmp_path / kind
        download.value.save_as(files[kind])
        assert download.value.suggested_filename.endswith(kind.lower())
    with Image.open(files["PNG"]) as picture:
        assert picture.width > 500
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 4  # text and lines, no empty page
    assert ElementTree.parse(files["SVG"]).getroot().tag.endswith("svg")
    assert json.loads(files["JSON"].read_text(encoding="utf-8"))


def test_a_saved_picture_is_as_wide_as_what_scrolls_in_the_page(
    studio: Any, new_page: Callable[..., Any], tmp_path: Path
) -> None:
    page = new_page(360).open(studio.view(f"steps?{TEXT}"))
    page.wait_for_selector(".tree text")
    with page.expect_download() as download:
        page.get_by_label("Save beam-search").get_by_role("button", name="SVG").click()
    download.value.save_as(tmp_path / "tree.svg")
    saved = ElementTree.parse(tmp_path / "tree.svg").getroot()
    assert int(saved.attrib["width"]) > page.evaluate("document.querySelector('.tree').scrollWidth") > 360


def test_a_link_restores_a_view_exactly(studio: Any, new_page: Callable[..., Any]) -> None:
    watched = new_page()
    page = watched.open(studio.view(f"look?{TEXT}"))
    page.wait_for_selector(".head-thumb")
    page.locator(".head-thumb").nth(2).click()
    page.locator(".ribbons .right .token").nth(1).click()
    page.get_by_role("radio", name="tokens").click()
    page.wait_for_function("() => location.hash.includes('unit=tokens')")
    page.locator(".ribbons .right .token").nth(1).click()
    page.keyboard.press("p")
    page.wait_for_selector(".pin-mark")
    page.get_by_role("button", name="linear scale").click()
    page.mouse.move(0, 0)
    page.keyboard.press("Tab")
    page.wait_for_function(READY)
    before = page.evaluate(f"() => {STATE}")
    assert len(before) > 5
    page.get_by_role("button", name="Copy a link to this view").click()
    page.wait_for_selector("text=Link copied, including the text")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert {"model=dates", "v=1"} <= set(copied.split("?")[1].split("&"))  # whatever the other server's first model is
    other = new_page().open(copied)
    other.wait_for_function(f"(before) => JSON.stringify({STATE}) === JSON.stringify(before)", arg=before)


def test_a_part_that_is_switched_off_changes_the_answer_and_can_be_undone(
    studio: Any, new_page: Callable[..., Any]
) -> None:
    page = new_page().open(studio.view(f"switch?{TEXT}"))
    page.get_by_role("button", name="without positions").click()
    page.wait_for_selector("text=With your switches")
    translator: Any = heedful.Translator.load(studio.folder / "dates", device="cpu")
    changed = translator.look(DATE, interventions=[heedful.Ablate("positions")]).output_text
    assert changed != translator.look(DATE).output_text
    page.wait_for_function(WITHOUT_CROSSED_OUT, arg=changed)
    page.get_by_role("button", name="Undo").click()
    page.wait_for_function("() => !location.hash.includes('off=')")
    switch = page.get_by_role("switch", name=re.compile(r"^decoder\.0\.cross, head 0"))
    assert min(switch.evaluate(TIME_OF_CLICK) for _ in range(5)) < 200
    assert switch.get_attribute("aria-checked") == "false"
    page.evaluate("scrollTo(0, 400)")
    page.keyboard.press("2")
    page.wait_for_selector(".head-thumb.off")
    assert page.evaluate("scrollY") == 0
    assert not page.locator(".toast").count()  # its Undo is of the view that was left


def test_switches_that_follow_each_other_quickly_end_in_the_answer_of_the_last(
    studio: Any, new_page: Callable[..., Any]
) -> None:
    page = new_page().open(studio.view(f"switch?{TEXT}"))
    switches = page.locator(".drawing .switch:not(.round)")
    switches.first.wait_for()
    for index in range(2 * 12):  # off, and on again
        switches.nth(index % 12).click()
        page.wait_for_timeout(20 * (index % 5))
    page.get_by_role("button", name="may look ahead").click()
    translator: Any = heedful.Translator.load(studio.folder / "dates", device="cpu")
    changed = translator.look(DATE, interventions=[heedful.Unmask("decoder")]).output_text
    page.wait_for_function(WITHOUT_CROSSED_OUT, arg=changed)
    assert not page.locator("main .error").count()


def test_an_edited_score_changes_the_weights_and_they_still_sum_to_one(
    studio: Any, new_page: Callable[..., Any]
) -> None:
    page = new_page().open(studio.view(f"steps?{TEXT}&position=3&phase=cross"))
    page.wait_for_selector(".matrix input")
    before = page.locator(".matrix td[style]").all_text_contents()
    page.locator(".matrix input").first.fill("40")
    page.wait_for_function(
        "(before) => document.querySelector('.matrix td[style]').textContent !== before", arg=before[0]
    )
    assert page.locator(".matrix.wide tr:last-child td").last.text_content() == "1"
    page.wait_for_selector(".tree text >> nth=5")


def test_the_worked_example_of_the_notes_is_computed(studio: Any, new_page: Callable[..., Any]) -> None:
    page = new_page().open(studio.view("steps"))
    page.wait_for_selector("text=differs")
    example = page.locator("[data-example='1']")
    assert "0.62 and 0.38" in example.text_content().replace("\n", " ")
    example.get_by_role("button", name="3 and 8").click()
    page.wait_for_function("() => document.querySelector('[data-example=\"1\"]').textContent.includes('0.22 and 0.78')")
    page.locator("[data-example='2'] input").fill("3")
    page.wait_for_function(SUM_OF_MONEY)
    table = page.locator("[data-example='3']")
    assert table.locator("td [title=masked]").count() == 15
    assert table.locator("tr").nth(2).text_content().startswith("not0.090.91")
    table.get_by_role("button", name="causal mask").click()
    page.wait_for_function("() => !document.querySelector('[data-example=\"3\"] td [title=masked]')")


def test_a_run_from_the_shell_appears_with_its_curve_and_the_film_of_its_attention(
    studio: Any, new_page: Callable[..., Any]
) -> None:
    page = new_page().open(studio.view("train"))
    page.get_by_role("button", name="dates", exact=True).click()
    page.wait_for_selector(".uplot canvas")
    page.wait_for_selector("text=How attention formed")
    page.get_by_label("Evaluation").fill("0")
    page.wait_for_selector("h3:has-text('step 40')")


def test_two_models_are_compared_side_by_side_and_on_pairs(studio: Any, new_page: Callable[..., Any]) -> None:
    page = new_page().open(studio.view(f"compare?{TEXT}&pairs={quote(DATE + chr(9) + '1923-01-09')}"))
    page.wait_for_selector("text=The difference")
    assert page.locator(".ribbons").count() == 2
    page.wait_for_selector(".difference td")
    page.locator(".ribbons").first.locator(".left .token").nth(1).click()
    page.wait_for_function("() => document.querySelectorAll('.ribbons .left [aria-pressed=true]').length === 2")
    page.get_by_role("button", name="Compare on 1 pair").click()
    page.wait_for_selector("text=of the answers are equal")
    assert "test=pairs" in page.url
    page.get_by_role("button", name="Compare on 200 validation texts").click()
    page.wait_for_selector("tr:has-text('all') >> text=200")


def test_a_classifier_shows_what_its_label_rests_on(studio: Any, new_page: Callable[..., Any]) -> None:
    page = new_page().open(studio.view("use?model=reviews&text=a%20warm%20and%20funny%20film"))
    page.wait_for_selector(".answer")
    assert page.text_content(".answer").strip() in ("good", "bad")
    page.get_by_role("button", name="Show attention").click()
    page.wait_for_selector(".head-thumb")
    page.get_by_role("button", name="Explain").click()
    page.wait_for_selector("text=Faithfulness: the area")


def test_every_part_of_the_architecture_is_a_switch_with_its_equation(
    studio: Any, new_page: Callable[..., Any]
) -> None:
    page = new_page().open(studio.view(f"switch?{TEXT}"))
    page.wait_for_selector(".drawing")
    translator: Any = heedful.Translator.load(studio.folder / "dates", device="cpu")
    assert page.locator(".wires path").count() == translator.model.config.decoder_layers
    for name, part in (
        ("norm before decoder.0.cross", "decoder.0.cross.norm"),
        ("skip-connection around encoder.0.attention", "encoder.0.attention.skip"),
        ("token embedding of the encoder", "source.tokens"),
    ):
        switch = page.get_by_role("switch", name=name, exact=True)
        switch.click()
        page.wait_for_function("(part) => location.hash.includes(part)", arg=part)
        changed = translator.look(DATE, interventions=[heedful.Ablate(part)]).output_text
        page.wait_for_function(WITHOUT_CROSSED_OUT, arg=changed)
        switch.click()
        page.wait_for_function("() => !location.hash.includes('off=')")
    for name, file in (("positions", "positions.py"), ("feed-forward", "feed_forward.py"), ("causal mask", "masks.py")):
        page.get_by_role("button", name=name, exact=True).first.click()
        page.wait_for_selector(f"code:has-text('{file}')")
        assert page.locator("math").count() == 1


def test_words_are_dragged_into_a_sum_and_the_answer_follows(studio: Any, new_page: Callable[..., Any]) -> None:
    page = new_page().open(studio.view("vectors?model=reviews&q=warm"))
    page.wait_for_selector(".bars [draggable]")
    word = page.locator(".bars [draggable]").first.text_content()
    page.locator(".bars [draggable]").first.drag_to(page.locator(".drop").nth(1))
    page.wait_for_function("(sum) => document.querySelector('#text').value === sum", arg=f"warm - {word}")
    page.locator(".drop").nth(2).click()
    page.wait_for_function(READY)
    third = page.locator(".bars [draggable]").first.text_content()
    page.locator(".bars [draggable]").first.click()
    page.wait_for_function("(sum) => document.querySelector('#text').value === sum", arg=f"warm - {word} + {third}")


def test_lessons_open_the_view_that_shows_their_concept(studio: Any, new_page: Callable[..., Any]) -> None:
    page = new_page().open(studio.view(f"look?lesson=A3&{TEXT}"))
    page.wait_for_selector("text=score = q · k")
    assert page.locator("aside").get_by_text("Scaled dot product").is_visible()
    page.get_by_role("link", name="All lessons").click()
    page.locator("a.lesson", has_text="Several heads").click()
    page.wait_for_selector(".head-thumb")
    assert "lesson=A5" in page.url


def test_a_model_is_trained_on_pasted_text_stopped_and_can_be_resumed(
    studio: Any, new_page: Callable[..., Any]
) -> None:
    page = new_page().open(studio.view("train"))
    page.get_by_role("radio", name="generate", exact=True).click()
    page.get_by_role("button", name="Paste text").click()
    page.get_by_label("Text", exact=True).fill("to be or not to be that is the question\n" * 400)
    page.get_by_role("button", name="Keep as a file").click()
    page.get_by_role("button", name="Check the text").click()
    page.wait_for_selector("text=The doctor read")
    page.get_by_role("radio", name="1m").click()
    page.get_by_role("button", name="Start training").click()
    page.wait_for_selector("text=/step \\d+ of/")
    page.get_by_role("button", name="Stop and keep").click()
    page.wait_for_selector("h2:has-text('generate-1: unfinished')")
    assert page.get_by_role("button", name="Resume").first.is_enabled()


def test_two_pasted_texts_are_a_corpus_and_replace_no_other(studio: Any, new_page: Callable[..., Any]) -> None:
    page = new_page().open(studio.view("train"))
    names = []
    for turn in ("first", "second"):
        page.get_by_role("button", name="Paste text").click()
        names.append(page.get_by_label("Name", exact=True).input_value())
        page.get_by_label("The texts to translate").fill(f"9 stycznia 1923\n{turn}")
        page.get_by_label("Their translations").fill("1923-01-09\nabc")
        page.get_by_role("button", name="Keep as a file").click()
        page.locator(".files label", has_text=f"{names[-1]}.target").locator(":checked").wait_for()
    assert names[0] != names[1]
    assert (studio.folder / f"pasted/{names[0]}.source").read_text() == "9 stycznia 1923\nfirst\n"
    for ending in ("source", "target"):
        page.locator(".files label", has_text=f"{names[0]}.{ending}").locator("input").uncheck()
    page.get_by_role("button", name="Check the text").click()
    page.wait_for_selector("text=The doctor read 2 rows")


def test_a_corrected_answer_is_learned_in_a_run_of_its_own(studio: Any, new_page: Callable[..., Any]) -> None:
    page = new_page().open(studio.view(f"use?{TEXT}"))
    page.get_by_role("button", name="Correct this").click()
    page.get_by_label("Correct answer").fill("1923-01-10")
    page.get_by_role("button", name="Save the pair").click()
    page.fill("#text", "10 stycznia 1923")
    page.get_by_role("button", name="Fine-tune on 1 correction").click()
    page.wait_for_selector("h2:has-text('dates-improved-1: ')")
    page.get_by_role("button", name="Stop and keep").click()
    page.wait_for_selector("h2:text-matches('dates-improved-1: (unfinished|failed|finished)')")
    learned = (studio.folder / "dates-improved-1.tsv").read_text()
    assert learned.count(f"{DATE}\t1923-01-10") == 10
    assert learned.count("\n") > 100


def test_a_study_of_the_lab_is_started_stopped_and_read(studio: Any, new_page: Callable[..., Any]) -> None:
    shutil.copytree(REPORTS / "windows", studio.folder / "lab/windows", dirs_exist_ok=True)
    page = new_page().open(studio.view("lab"))
    page.get_by_role("button", name="windows", exact=True).click()
    page.wait_for_selector("h3:has-text('Answer')")
    page.wait_for_function("() => document.querySelector('.study-picture')?.naturalWidth > 100")
    page.get_by_role("button", name="Run quickly: approximation").click()
    page.wait_for_selector("text=/running: \\d+ trials? stored/")
    page.get_by_role("button", name="Stop and keep").click()
    page.get_by_role("button", name="Run in full").wait_for()


def test_a_token_is_asked_for_once_and_kept_in_memory(studio: Any, browser: Any) -> None:
    settings = ServerSettings(token=TOKEN, log_file=studio.folder / "access.log")
    with running({"reviews": studio.folder / "reviews"}, settings, create_studio_app, device="cpu") as server:
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto(f"{server.url}/studio/#/use?text=a%20warm%20film")
        for token in ("wrong, and long enough", TOKEN):
            page.get_by_label("Token (kept").fill(token)
            page.get_by_role("button", name="Use it").click()
            if token != TOKEN:
                page.wait_for_selector("text=refused this token")
        page.wait_for_selector(".answer")
        assert not page.locator("dialog[open]").count()
        assert (
            page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])").find(TOKEN) < 0
        )
        page.goto(f"{server.url}/studio/#/train")
        page.wait_for_selector("text=This server does not train")
        page.context.close()


@pytest.mark.parametrize(
    "text", ["<img src=x onerror=alert(1)>", "שלום עולם 2024", "日本語のテスト", "😀\u0000\t" * 9, "x" * 300]
)
def test_no_text_becomes_markup_or_breaks_the_page(studio: Any, new_page: Callable[..., Any], text: str) -> None:
    watched = new_page()
    page = watched.open(studio.view(f"look?text={quote(text)}"))
    page.wait_for_function("() => document.querySelector('.head-thumb, .error')")
    watched.problems[:] = [problem for problem in watched.problems if "422" not in problem]  # a text that is too long
    assert page.locator("main img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0

"""The page at /, in a real browser before a real server."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from support.server.browser import KEY, PHONE, Tab, needs_chromium

pytest.importorskip("playwright", reason="needs chromium: pip install playwright")

pytestmark = [pytest.mark.slow, needs_chromium]

ADA = '{"name": "Ada Berg", "age": 31}'
LONG = "[ab]{600}"


def test_tokens_show_how_they_came(tab: Tab) -> None:
    tab.run()
    assert tab.answer() == ADA
    sampled, drafted = tab.tokens(".sampled").count(), tab.tokens(".drafted").count()
    assert sampled > 0 and drafted > sampled
    assert re.sub(r"\s+", " ", tab.text("#legend")).startswith(f"{sampled} sampled")
    assert f"{drafted} drafted by the EAGLE3 head" in tab.text("#legend")
    assert "to its end" in tab.text("#stats") and "Tokens/s" in tab.text("#stats")
    assert tab.text("#said") == f"The answer: {ADA}"


def test_hover_and_arrow_keys_tell_of_a_token(tab: Tab) -> None:
    tab.run()
    tab.tokens().nth(1).hover()
    tip = tab.text("#tip")
    name = tab.tokens().nth(1).text_content()
    assert f"“{name}”" in tip and "Sampled from the model" in tip
    assert re.search(r"Probability [\d.]+ %; \d+ of [\d,]+ tokens were allowed", tip)
    assert tab.page.locator("#tip tr").count() == 5 and tab.page.locator("#tip .forbidden").count() > 0
    tab.page.keyboard.press("Escape")
    assert tab.page.is_hidden("#tip")
    tab.tokens().first.focus()
    tab.page.keyboard.press("ArrowRight")
    assert tab.tokens().nth(1).get_attribute("aria-describedby") == "tip"
    assert f"“{name}”" in tab.text("#tip")


def test_where_the_guide_overruled_the_model(tab: Tab) -> None:
    tab.example("Overruled").run()
    assert tab.answer().startswith('{"person": "Ada Berg", "years":')
    tab.tokens(".overruled").first.hover()
    assert re.search("The guide overruled the model, which preferred “.+”", tab.text("#tip"))
    assert "where the guide overruled the model" in tab.text("#legend")


def test_a_guide_is_checked_as_one_types(tab: Tab) -> None:
    tab.page.wait_for_selector("#verdict.good")
    before = len(tab.checks)
    tab.guide("json_schema", '{"type": "foo"}')
    tab.page.wait_for_selector("#verdict.bad")
    assert "type is 'foo'; it must be one of object" in tab.text("#verdict")
    assert tab.page.get_attribute("#guide", "aria-invalid") == "true"
    tab.page.fill("#guide", "")
    tab.page.type("#guide", "true")  # as fast as keys come: one check
    tab.page.wait_for_selector("#verdict.good")
    assert [body["guide"] for body in tab.checks[before:]] == [
        {"json_schema": '{"type": "foo"}'},
        {"json_schema": "true"},
    ]
    tab.guide("lark", "start: foo\nfo").run()
    assert "Expected token ':'" in tab.text("#verdict")
    assert tab.text("#failed") == "The guide is wrong: see below it."


@pytest.mark.parametrize(
    ("kind", "text", "answer"),
    [
        ("lark", 'start: "yes"', "yes"),
        ("ebnf", 'root ::= "no"', "no"),
        ("choice", "maybe\nmaybe not", "maybe"),
        ("regex", "(é☃\n){2}", "é☃\né☃\n"),
    ],
)
def test_every_kind_of_guide(tab: Tab, kind: str, text: str, answer: str) -> None:
    tab.guide(kind, text).run()
    assert tab.answer().startswith(answer)


def test_a_guide_by_name(tab: Tab) -> None:
    tab.guide("handle").run()
    assert tab.asked[-1]["guide"] == {"handle": "digits"}
    assert re.fullmatch("[0-9]{3}", tab.answer())


def test_the_slider_limits_drafts(tab: Tab) -> None:
    for drafts in (0, 2):
        tab.page.fill("#drafts", str(drafts))
        tab.run()
        assert tab.asked[-1]["max_drafts"] == drafts
        assert (tab.tokens(".drafted").count() > 0) == (drafts > 0)
        assert tab.answer() == ADA


def test_a_model_without_a_drafter(tab: Tab) -> None:
    assert tab.page.is_visible("#note")
    tab.page.select_option("#model", "plain")
    assert tab.page.is_disabled("#drafts") and tab.page.is_visible("#note")  # the same model
    tab.example("Free").run()
    assert tab.asked[-1]["model"] == "plain" and tab.tokens(".drafted").count() == 0


def test_a_race_ends_with_equal_text(tab: Tab) -> None:
    tab.example("Longer")
    for _ in range(3):  # others use the machine, too
        tab.run("#race")
        assert "Equal text." in tab.text("#outcome")
        a, b = map(int, re.findall(r"\d+(?= iterations)", tab.text("#lanes")))
        assert 2 * b < a
        if tab.text("#outcome").startswith("B is "):
            break
    said = rf"B is [\d.]+ times as fast as A: {b} iterations against {a}\. Equal text\."
    assert re.fullmatch(said, tab.text("#outcome"))
    assert tab.page.locator(".lane.winner").get_attribute("aria-label") == "Setting B"
    lanes = [tab.answer(f".lane:nth-child({place})") for place in (1, 2)]
    assert lanes[0] == lanes[1]
    tab.page.click("#slow")
    tab.page.wait_for_selector(".token.later", state="attached")
    tab.run("#stop")
    assert tab.page.locator(".token.later").count() == 0


def test_the_race_says_where_texts_differ(tab: Tab) -> None:
    tab.example("Overruled")
    tab.page.locator(".lane").first.get_by_text("with the guide").click()
    tab.run("#race")
    assert "The texts differ." in tab.text("#outcome")


def test_the_timeline_is_drawn_while_an_answer_runs(tab: Tab) -> None:
    tab.guide("regex", LONG).page.fill("#most", "400")
    tab.page.click("#run")
    tab.page.wait_for_selector("#tracks .slice.forward")
    tab.ready()
    names = tab.page.locator(".track > span").all_text_contents()
    assert names == ["grammar", "model"]
    for row, kind in enumerate(("grammar", "draft")):
        assert tab.page.locator(".track").nth(row).locator(f".slice.{kind}").count() > 0
    assert re.search(r"iterations? of [\d.]+ ms. The grammar worked [\d.]+ ms", tab.text("#timeline-text"))


def test_stop_cancels_on_the_server(tab: Tab, page_url: str) -> None:
    tab.guide("regex", LONG).page.fill("#most", "900")
    tab.page.fill("#drafts", "0")
    # As quick as a click can be, however slowly the test's own process comes to its turn.
    tab.page.evaluate("""() => new MutationObserver(() => {
        if (document.querySelector('#turns .token')) document.querySelector('#stop').click()
    }).observe(document.querySelector('#turns'), {childList: true, subtree: true})""")
    tab.run()
    assert "Stopped." in tab.text("#turns")
    assert 0 < tab.tokens().count() < 600
    limit = time.monotonic() + 60
    while _figure(page_url, "vllm:num_requests_running") > 0:
        assert time.monotonic() < limit
        time.sleep(0.05)


def _figure(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


def test_markup_is_text(tab: Tab) -> None:
    markup = '<img src=x onerror="window.hit=1">'
    tab.page.click("#modes label:has([value=chat])")
    tab.page.fill("#prompt", markup)
    tab.guide("regex", markup.replace(".", r"\.")).run()
    assert tab.answer() == markup and tab.text(".asked") == markup
    tab.tokens().nth(2).hover()
    tab.run("#race")
    assert tab.page.locator("img").count() == 0
    assert tab.page.evaluate("window.hit") is None


def test_a_chat_goes_on(tab: Tab) -> None:
    tab.page.click("#modes label:has([value=chat])")
    tab.run()
    assert tab.answer() == ADA and tab.page.input_value("#prompt") == ""
    tab.page.fill("#prompt", 'Text: Tom Lund is 52.\nSchema: {"name": string, "age": integer}\nJSON:')
    tab.run()
    asked = [message["content"] for message in tab.asked[-1]["messages"]]
    assert len(asked) == 3 and asked[1] == ADA
    assert tab.page.locator(".turn").count() == 2
    tab.page.click("#anew")
    assert tab.page.locator(".turn").count() == 0


def test_thinking_is_shown_as_such(tab: Tab) -> None:
    tab.page.click("#modes label:has([value=chat])")
    tab.page.select_option("#model", "plain")
    tab.guide("none")
    tab.page.fill("#prompt", "Text: Ada Berg. <think>")  # the template ends with it: the model goes on within
    tab.run()
    assert tab.tokens(".thought").count() == tab.tokens().count() > 0
    tab.tokens(".thought").first.hover()
    assert "Thinking" in tab.text("#tip")


def test_the_key_is_asked_for(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab(key=None)
    for key in ("a wrong one", KEY):
        tab.page.wait_for_selector("#key-dialog[open]")
        tab.page.fill("#key", key)
        with tab.page.expect_response("**/v1/models"):
            tab.page.click("#key-dialog button.main")
    assert tab.ready().run().answer() == ADA
    assert tab.page.evaluate("localStorage.getItem('weft-key')") is None


def test_without_a_key_the_page_says_why(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab(key=None)
    tab.page.click("#key-dialog >> text=Cancel")
    tab.page.wait_for_selector("#failed")
    assert "the API key is missing or wrong" in tab.text("#failed")


def test_a_phone_has_no_horizontal_scroll(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab(**PHONE).ready().example("Longer").run().run("#race")
    assert tab.page.evaluate("document.documentElement.scrollWidth") == 390
    tab.tokens().nth(3).tap()
    tip = tab.page.locator("#tip").bounding_box()
    assert tip["x"] >= 0 and tip["x"] + tip["width"] <= 390
    tab.page.locator("h1").tap()
    assert tab.page.is_hidden("#tip")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_themes_can_be_read(open_tab: Callable[..., Tab], theme: str) -> None:
    tab = open_tab(color_scheme=theme).ready().example("Overruled").run()
    tab.tokens(".overruled").first.hover()
    texts = tab.page.evaluate(CONTRASTS)
    assert len(texts) > 40 and [text for text in texts if text[0] < 4.5] == []
    before = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.page.click("#theme")
    other = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert before != other
    tab.page.reload()
    tab.ready()
    assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") == other


def test_everything_has_a_name(tab: Tab) -> None:
    unnamed = """() => [...document.querySelectorAll('input, select, textarea, button')].filter(one =>
        !one.labels?.length && !one.textContent.trim() && !one.ariaLabel && !one.getAttribute('aria-labelledby')
    ).map(one => one.outerHTML)"""
    assert tab.page.evaluate(unnamed) == []


def test_the_page_loads_its_own_files_alone() -> None:
    folder = Path(__file__).parents[2] / "python/weft/server/page"
    files = {file.name: file.read_text() for file in folder.iterdir()}
    text = "".join(files.values())
    assert "innerHTML" not in text and "outerHTML" not in text and "insertAdjacentHTML" not in text
    assert set(re.findall(r"https?://[^'\" ]+", text)) == {"http://www.w3.org/2000/svg"}
    named = re.findall(r"""(?:from |href=|src=)["'](?:\./|page/)([^"']+)["']""", text)
    assert {*named, "index.html"} == set(files)


def test_the_pages_files_have_their_types_and_its_headers(page_url: str) -> None:
    for path, kind in (("/", "html"), ("/page/style.css", "css"), ("/page/main.js", "javascript")):
        with urllib.request.urlopen(page_url + path) as answer:
            assert answer.headers["content-type"] == f"text/{kind}; charset=utf-8"
            assert "script-src 'self'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
    for path in ("/page/", "/page/index.html", "/page/../app.py", "/page/%2e%2e/app.py"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(page_url + path)


CONTRASTS = """() => {
    const parts = text => text.match(/[\\d.]+/g).map(Number)
    const linear = v => v <= .04 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4
    const light = ([r, g, b]) => [r, g, b].map(v => linear(v / 255))
        .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0)
    const behind = one => { const [r, g, b, a = 1] = parts(getComputedStyle(one).backgroundColor)
        return a ? [r, g, b] : behind(one.parentElement) }
    const small = '.hint, .token, .muted, button.main, .stats small, #verdict, #tip td, #tip .why'
    return [...document.querySelectorAll(small)]
        .filter(one => one.checkVisibility() && one.textContent.trim()).map(one => {
            const [a, b] = [light(parts(getComputedStyle(one).color)), light(behind(one))].sort((x, y) => y - x)
            return [(a + .05) / (b + .05), one.className || one.id, one.textContent.slice(0, 20)]
        })
}"""
"""Small texts, and their contrast, of which WCAG wants 4.5."""

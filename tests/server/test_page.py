"""The page at /, in a real browser before a real server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.server.browser import CONFIG, KEY, PHONE, Tab, needs_chromium, site

pytest.importorskip("playwright", reason="needs chromium: pip install playwright")

pytestmark = [pytest.mark.slow, needs_chromium]

ADA = '{"name": "Ada Berg", "age": 31}'
LONG = "[ab]{600}"
OTHER_KEY = "another key"


@pytest.fixture(scope="module")
def page_url_of_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with two keys."""
    config = CONFIG.replace("[server.api_keys]", f'[server.api_keys]\nother = "{OTHER_KEY}"')
    with site(tmp_path_factory.mktemp("two"), config) as address:
        yield address


def test_tokens_show_how_they_came(tab: Tab) -> None:
    tab.run()
    assert tab.answer() == ADA
    sampled, drafted = tab.tokens(".sampled").count(), tab.tokens(".drafted").count()
    assert sampled > 0 and drafted > sampled
    assert re.sub(r"\s+", " ", tab.text("#legend")).startswith(f"{sampled} sampled")
    assert f"{drafted} drafted by the EAGLE3 head" in tab.text("#legend")
    assert "to its end" in tab.text("#stats") and "Tokens/s" in tab.text("#stats")
    assert tab.text("#announcement") == f"The answer: {ADA}"


def test_hover_and_arrow_keys_tell_of_a_token(tab: Tab) -> None:
    tab.run()
    tab.tokens().nth(1).hover()
    tip = tab.text("#tip")
    name = tab.tokens().nth(1).text_content()
    assert f"“{name}”" in tip and "Drafted by the EAGLE3 head; the model agreed" in tip
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
    assert tab.answer() == '{"person": "Ada Berg", "years": 31}'
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


def test_every_kind_of_guide(tab: Tab) -> None:
    for kind, text, answer in (
        ("lark", 'start: "yes"', "yes"),
        ("ebnf", 'root ::= "no"', "no"),
        ("choice", "maybe\nmaybe not", "maybe"),
        ("regex", "(é☃\n){2}", "é☃\né☃\n"),
    ):
        tab.guide(kind, text).run()
        assert tab.answer().startswith(answer), kind


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
    assert tab.page.is_hidden("#timeline-card")
    tab.guide("regex", LONG).page.fill("#max-tokens", "400")
    tab.page.click("#run")
    tab.page.wait_for_selector("#tracks .slice.forward")
    tab.ready()
    names = tab.page.locator("#tracks .track > span").all_text_contents()
    assert names == ["grammar", "model"]
    for row, kind in enumerate(("grammar", "draft")):
        assert tab.page.locator("#tracks .track").nth(row).locator(f".slice.{kind}").count() > 0
    # What only the page requests is marked, and not counted.
    assert tab.page.locator("#tracks .slice.page").first.get_attribute("title").startswith("logprobs: ")
    text = tab.text("#timeline-text")
    assert re.match(
        r"An iteration takes [\d.]+ ms, without the log-probabilities, which only this page requests", text
    )
    overlap = r"(; \d+ % of that overlaps the model)?"  # as the system's scheduler has it
    assert re.search(rf"The grammar works [\d.]+ ms of it, \d+ %{overlap}\. This server has no GPU: ", text)


def recorded(tab: Tab) -> Tab:
    """Wait until an answer's last recording ends: the server refuses another one meanwhile."""
    tab.page.wait_for_selector("#timeline-card[aria-busy=false]")
    return tab


def test_the_sketch_says_that_it_is_one(tab: Tab) -> None:
    tab.guide("regex", LONG).run()
    tab.page.wait_for_selector("#sketch")
    assert "On a GPU: a sketch, not a measurement." in tab.text("#sketch figcaption")
    boxes = [box.bounding_box() for box in tab.page.locator("#sketch .slice").all()]
    masks, commit, forward, *_, draft = boxes
    assert forward["x"] <= masks["x"] < masks["x"] + masks["width"] < forward["x"] + forward["width"]
    assert draft["x"] > commit["x"] > forward["x"] + forward["width"]
    tab.guide("none")
    for _ in range(5):  # a short answer may end before its recording begins
        recorded(tab).run()
        if "too short" not in recorded(tab).text("#timeline-text"):
            break
    assert "No guide" in tab.text("#timeline-text")
    assert tab.page.is_hidden("#sketch")


def test_a_tenant_sees_the_timeline_of_its_own_requests(
    open_tab: Callable[..., Tab], page_url_of_two: str
) -> None:
    tab = open_tab(url=page_url_of_two).ready().guide("regex", LONG).run()
    tab.page.wait_for_selector("#tracks .slice.grammar")
    other = open_tab(key=OTHER_KEY, url=page_url_of_two).ready()
    for each in (other, tab):
        each.page.fill("#drafts", "0")
        each.page.fill("#max-tokens", "900")
        each.guide("regex", "[ab]{890}").page.wait_for_selector("#verdict.good")
    # Answer after answer, so that some share iterations however late the clicks come.
    for each in (other, tab):
        each.page.evaluate("setInterval(() => document.querySelector('#run').click(), 100)")
    # Read in one step, because another recording may be drawn at any time.
    tab.page.wait_for_function("""() => document.querySelector('#tracks .slice.shared')
        && !document.querySelector('#tracks .slice:not(.shared)') && document.querySelector('#sketch').hidden
        && document.querySelector('#timeline-text').textContent.startsWith('Requests with other keys share these')
    """)


def test_a_short_answer_says_why_it_has_no_timeline(tab: Tab) -> None:
    tab.guide("regex", LONG).run()
    tab.page.wait_for_selector("#tracks .slice.forward")
    recorded(tab).example("Schema")
    tab.page.route(
        "**/v1/timeline?*", lambda route: route.fulfill(json={"slices": [], "tracks": [], "shared": []})
    )
    tab.run()
    tab.page.wait_for_selector("#timeline-card >> text=too short for a recording")
    assert tab.page.locator("#tracks .slice").count() == 0  # no drawing of an older answer
    tab.page.unroute("**/v1/timeline?*")
    error = {"error": {"message": "timelines are of the CPU runtime", "code": "no_timeline"}}
    tab.page.route("**/v1/timeline?*", lambda route: route.fulfill(status=400, json=error))
    tab.run()
    tab.page.wait_for_selector("#timeline-text >> text=No timeline: timelines are of the CPU runtime")


def test_stop_cancels_on_the_server(tab: Tab, page_url: str) -> None:
    tab.guide("regex", LONG).page.fill("#max-tokens", "900")
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
    tab.page.click("#views label:has([value=tokens])")
    tab.page.fill("#prompt", markup)
    tab.guide("regex", markup.replace(".", r"\.")).run()
    assert tab.answer() == markup and tab.text(".message") == markup
    tab.tokens().nth(2).hover()
    tab.run("#race")
    assert tab.page.locator("img").count() == 0
    assert tab.page.evaluate("window.hit") is None


def test_thinking_is_shown_as_such(tab: Tab) -> None:
    tab.page.click("#modes label:has([value=chat])")
    tab.page.select_option("#model", "plain")
    tab.guide("none")
    tab.page.fill("#prompt", "Text: Ada Berg. <think>")  # the template ends with it: the model goes on within
    tab.run()
    assert tab.text(".thoughts summary") == "Thoughts"
    tab.page.click("#views label:has([value=tokens])")
    assert tab.tokens(".thought").count() == tab.tokens().count() > 0
    tab.tokens(".thought").first.hover()
    assert "Thinking" in tab.text("#tip")


def test_the_key_is_asked_for(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab(key=None)
    for key in ("a wrong one", KEY):
        tab.page.wait_for_selector("#key-dialog[open]")
        assert tab.page.is_visible("#key-refused") == (key == KEY)  # after the wrong one
        assert tab.page.get_attribute("#key", "aria-invalid") == str(key == KEY).lower()
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


def test_nothing_is_covered_and_all_settings_fit_a_small_screen(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab(viewport={"width": 1440, "height": 900}).ready()
    tab.page.wait_for_selector("#verdict.good")
    page = tab.page.evaluate("document.documentElement.scrollHeight")
    assert page <= 900
    run = tab.page.locator(".actions").bounding_box()
    for field in ("#prompt", "#guide", "#temperature", "#max-tokens", "#seed"):
        box = tab.page.locator(field).bounding_box()
        assert box["y"] >= run["y"] + run["height"] or box["y"] + box["height"] <= run["y"], field
    for example in ("Schema", "Longer", "Lark"):
        tab.example(example)
        hidden = (
            "document.querySelector('#guide').scrollHeight - document.querySelector('#guide').clientHeight"
        )
        assert tab.page.evaluate(hidden) <= 0, example


def test_a_phone_keeps_its_rows(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab(**PHONE).ready()
    tab.page.evaluate(
        "document.querySelector('#model option').textContent = 'a-model-with-a-long-name · draft_model'"
    )
    tops = lambda selector: {round(box.bounding_box()["y"]) for box in tab.page.locator(selector).all()}  # noqa: E731
    assert len(tops("#kinds label")) == 1 and tab.page.locator("#kinds label").count() == 7
    right = lambda selector: (box := tab.page.locator(selector).bounding_box())["x"] + box["width"]  # noqa: E731
    assert right("#kinds label:last-child") <= right("#guide")
    middle = lambda selector: (box := tab.page.locator(selector).bounding_box())["y"] + box["height"] / 2  # noqa: E731
    assert middle("#theme") == pytest.approx(middle("#model"), abs=2)
    assert tab.page.evaluate("document.documentElement.scrollWidth") == 390
    tab.page.evaluate("scrollTo(0, 1e6)")
    outcome, bar = (tab.page.locator(name).bounding_box() for name in ("#race-card", ".actions"))
    assert outcome["y"] + outcome["height"] <= bar["y"]


def test_nothing_empty_before_the_first_run(tab: Tab) -> None:
    for empty in ("#timeline-card", "#stats", "#shares", ".lane .clock", "#sketch"):
        assert not any(part.is_visible() for part in tab.page.locator(empty).all()), empty
    tab.run("#race")
    assert tab.page.locator(".lane .clock").first.is_visible()


def test_a_forced_token_tells_the_truth(tab: Tab) -> None:
    token = {
        "token": "per",
        "bytes": [112, 101, 114],
        "origin": "forced",
        "logprob": -1.5,
        "top_logprobs": [],
    }
    show = """async tokens => {
        const { TokenBox } = await import('/page/tokens.js')
        const box = new TokenBox('a box')
        box.add(tokens, 1536)
        document.querySelector('#turns').replaceChildren(box.element)
    }"""
    tab.page.evaluate(show, [{**token, "num_allowed": 3}, {**token, "num_allowed": 1}])
    tab.tokens().first.hover()
    assert "Drafted from the grammar, which allowed no other text here." in tab.text("#tip")
    assert "3 of 1,536 tokens were allowed, which all begin that text." in tab.text("#tip")
    tab.tokens().last.hover()
    assert "no other token was allowed" in tab.text("#tip")


# -- the request as code

LANGUAGES = {"curl": ["bash", "-euc"], "python": [sys.executable, "-c"]}
REQUESTS = ["Schema", "Longer", "Regex", "Lark", "Overruled", "Free", "chat", "choice"]


def prepared(tab: Tab, request: str) -> Tab:
    """Fill in the request: an example's, or one with quotes, other scripts and settings of its own."""
    if request not in ("chat", "choice"):
        return tab.example(request)
    text = 'Text: Zoë\'s "café" costs $5 \\ €7.\nJSON: \u2028 😀'
    tab.page.fill("#prompt", text)
    if request == "chat":
        tab.page.click("#modes label:has([value=chat])")
        return tab.guide("json_schema", '{"enum": ["it\'s \\/ \\u00e9", true, null]}')
    tab.page.fill("#drafts", "1")
    tab.page.fill("#seed", "7")
    tab.page.fill("#temperature", "0.5")
    return tab.guide("choice", 'it\'s\n"no" \\ $HOME')


@pytest.mark.parametrize("request_name", REQUESTS)
def test_the_code_runs_as_copied(tab: Tab, request_name: str) -> None:
    prepared(tab, request_name)
    tab.page.click("#code-details summary")
    codes = {}
    for language in LANGUAGES:
        tab.page.click(f"#languages label:has([value={language}])")
        codes[language] = tab.text("#code")
        assert KEY not in codes[language]
    tab.run()
    for language, code in codes.items():
        result = subprocess.run(
            [*LANGUAGES[language], code],
            env={**os.environ, "WEFT_API_KEY": KEY},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert result.returncode == 0, result.stderr
        text = result.stdout.removesuffix("\n")
        if language == "curl":
            choice = json.loads(text)["choices"][0]
            text = choice["message"]["content"] if "message" in choice else choice["text"]
        assert text == tab.answer()


def test_the_code_is_copied(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab(permissions=["clipboard-read", "clipboard-write"]).ready()
    tab.page.click("#code-details summary")
    tab.page.fill("#prompt", "of my own")
    tab.page.click("#copy-code")
    tab.page.wait_for_selector("#copy-code >> text=Copied")
    code = tab.page.evaluate("navigator.clipboard.readText()")
    assert code == tab.page.text_content("#code") and '"prompt": "of my own"' in code
    # A page that came over plain HTTP has no clipboard API.
    tab.page.evaluate("navigator.clipboard.writeText('')")
    tab.page.evaluate("delete Navigator.prototype.clipboard")
    tab.page.click("#copy-code")
    tab.page.wait_for_selector("#copy-code >> text=Copied")
    tab.page.fill("#prompt", "")
    tab.page.focus("#prompt")
    tab.page.keyboard.press("ControlOrMeta+v")
    assert tab.page.input_value("#prompt") == code


# -- looks


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
    tab.page.click("#code-details summary")
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


def test_the_keyboard_is_enough(tab: Tab) -> None:
    keys = tab.page.keyboard
    focused = "document.activeElement.id || document.activeElement.closest('[id]').id"
    tab.page.focus("#prompt")
    keys.press("Tab")
    assert tab.page.evaluate(focused) == "run"
    keys.press("Enter")
    tab.page.wait_for_selector("#turns .token")
    tab.ready()
    assert tab.answer() == ADA
    tab.page.focus("#code-details summary")
    keys.press("Enter")
    keys.press("Tab")
    keys.press("ArrowRight")
    assert tab.text("#code").startswith("import os")
    keys.press("Tab")
    assert tab.page.evaluate(focused) == "copy-code"
    keys.press("Tab")
    assert tab.page.evaluate(focused) == "code"
    # The focus can be seen.
    for name in ("#theme", "#model", "#prompt", "#copy-code"):
        tab.page.focus(name)
        keys.press("Shift")
        assert tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", name


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
    const small = '.hint, .token, .muted, button.main, .stats small, #verdict, #tip td, .why, .slice, .legend span'
        + ', #code, figcaption'
    return [...document.querySelectorAll(small)]
        .filter(one => one.checkVisibility() && one.textContent.trim()).map(one => {
            const [a, b] = [light(parts(getComputedStyle(one).color)), light(behind(one))].sort((x, y) => y - x)
            return [(a + .05) / (b + .05), one.className || one.id, one.textContent.slice(0, 20)]
        })
}"""
"""Small texts, and their contrast, of which WCAG wants 4.5."""

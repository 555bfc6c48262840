"""The chat of the page at /, in a real browser before a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from support.server.browser import KEY, PHONE, Tab, needs_chromium

pytest.importorskip("playwright", reason="needs chromium: pip install playwright")

pytestmark = [pytest.mark.slow, needs_chromium]

ADA = '{"name": "Ada Berg", "age": 31}'
QUESTION = 'Text: Ada Berg is 31 years old.\nSchema: {"name": string, "age": integer}\nJSON: '
TOKEN = {
    "token": "part",
    "bytes": [112, 97, 114, 116],
    "origin": "sampled",
    "logprob": -1.5,
    "top_logprobs": [],
    "num_allowed": 3,
}
TOM = 'Text: Tom Lund is 52.\nSchema: {"name": string, "age": integer}\nJSON: '


@pytest.fixture
def chat(tab: Tab) -> Tab:
    """A chat, with the first example's message not yet sent."""
    tab.page.click("#modes label:has([value=chat])")
    return tab


def send(chat: Tab, text: str) -> Tab:
    chat.page.fill("#prompt", text)
    chat.page.press("#prompt", "Enter")
    return chat.ready()


def roles(chat: Tab) -> list[str]:
    """The roles of the messages of the last request."""
    return [message["role"] for message in chat.asked[-1]["messages"]]


def only_says(chat: Tab, text: str) -> Tab:
    """Let every answer be this text."""
    chat.guide("ebnf", f"root ::= {json.dumps(text)}")
    chat.page.wait_for_selector("#verdict.good")
    return chat


def on_third_token(chat: Tab, script: str) -> None:
    """Run a script as soon as an answer has three tokens: in the page itself, which a busy machine cannot delay beyond
    the answer's end."""
    chat.page.evaluate(
        """() => {
            const observer = new MutationObserver(() => {
                if (document.querySelectorAll('#turns .token').length < 3) return
                observer.disconnect()
                SCRIPT
            })
            observer.observe(document.querySelector('#turns'), {childList: true, subtree: true})
        }""".replace("SCRIPT", script)
    )


def test_enter_sends_and_shift_enter_begins_a_line(chat: Tab) -> None:
    chat.page.fill("#prompt", "one")
    chat.page.press("#prompt", "Shift+Enter")
    chat.page.type("#prompt", "two")
    chat.page.press("#prompt", "Enter")
    chat.ready()
    assert chat.asked[-1]["messages"] == [{"role": "user", "content": "one\ntwo"}]
    assert chat.page.input_value("#prompt") == ""
    assert chat.page.evaluate("document.activeElement.id") == "prompt"


def test_escape_stops_an_answer_and_the_chat_keeps_its_part(chat: Tab) -> None:
    chat.guide("regex", "[ab]{600}")
    chat.page.fill("#max-tokens", "600")
    chat.page.fill("#prompt", "go")
    on_third_token(chat, "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    chat.page.press("#prompt", "Enter")
    chat.ready()
    assert "Stopped." in chat.text("#turns") and 3 <= chat.tokens().count() < 600
    assert re.search("[ab]{2}", chat.text(".assistant"))


@pytest.mark.parametrize("click", ["#new-chat", "#delete-chat", "#modes [value=completion]"])
def test_an_answer_stays_in_its_chat_if_another_opens(chat: Tab, click: str) -> None:
    chat.page.on("dialog", lambda dialog: dialog.accept())
    chat.guide("regex", "[ab]{600}")
    chat.page.fill("#max-tokens", "600")
    chat.page.fill("#prompt", "go")
    on_third_token(chat, f"document.querySelector('{click}').click()")
    chat.page.press("#prompt", "Enter")
    chat.ready()
    assert chat.page.locator(".turn").count() == 0
    kept = chat.page.evaluate("JSON.parse(localStorage.getItem('weft-chats')).chats")
    if click == "#delete-chat":
        assert kept == []
    else:
        question, answer = kept[0]["messages"]
        assert question["content"] == "go" and answer["note"] == "Stopped."
        assert re.fullmatch("[ab]{2,599}", answer["content"])


def test_an_empty_answer_says_so(chat: Tab) -> None:
    only_says(chat, "")
    send(chat, "go")
    assert chat.page.is_hidden("#failed") and "The answer is empty." in chat.text(".assistant")


def test_enter_in_an_empty_field_changes_nothing(chat: Tab) -> None:
    chat.run()
    chat.page.press("#prompt", "Enter")
    assert len(chat.ready().asked) == 1 and chat.text(".assistant .prose") == ADA


def test_a_browser_that_forbids_storage_can_chat(chat: Tab) -> None:
    forbid = """for (const name of ['localStorage', 'sessionStorage'])
        Object.defineProperty(window, name, { get() { throw new DOMException('forbidden', 'SecurityError') } })"""
    chat.page.add_init_script(forbid)
    chat.page.reload()
    chat.page.fill("#key", KEY)
    chat.page.click("#key-dialog button.main")
    chat.ready().page.click("#modes label:has([value=chat])")
    chat.page.click("#views label:has([value=tokens])")
    chat.page.click("#theme")
    chat.run()
    assert chat.answer() == ADA and chat.page.is_visible("#unkept")


def test_a_system_message_comes_first(chat: Tab) -> None:
    chat.page.click("#system-box summary")
    chat.page.fill("#system", "Be short.")
    chat.run()
    chat.page.click("#code-details summary")
    chat.page.wait_for_selector("#code:has-text('Be short.')")
    send(chat, TOM)
    assert roles(chat) == ["system", "user", "assistant", "user"]
    assert chat.asked[-1]["messages"][0]["content"] == "Be short."


def test_answers_are_text_and_their_tokens_a_click_away(chat: Tab) -> None:
    chat.run()
    assert chat.text(".assistant .prose") == ADA and not chat.page.is_visible(".assistant .tokens")
    chat.page.click("#views label:has([value=tokens])")
    assert chat.page.is_visible(".assistant .tokens") and not chat.page.is_visible(".assistant .prose")
    chat.tokens().nth(1).hover()
    assert "Probability" in chat.text("#tip")
    chat.page.reload()
    assert chat.ready().page.is_checked("#views [value=tokens]")


def test_a_chat_survives_a_reload(chat: Tab) -> None:
    chat.page.click("#system-box summary")
    chat.page.fill("#system", "Be short.")
    chat.run()
    chat.page.fill("#prompt", "not sent yet")
    chat.page.reload()
    chat.ready()
    assert chat.text(".message") == QUESTION and chat.text(".assistant .prose") == ADA
    assert chat.page.input_value("#system") == "Be short."
    assert chat.page.input_value("#prompt") == "not sent yet"
    chat.guide("none")
    send(chat, TOM)
    assert roles(chat) == ["system", "user", "assistant", "user"]


def test_past_chats_can_be_opened_and_deleted(chat: Tab) -> None:
    chat.run()
    assert chat.page.is_hidden("#chats")
    chat.page.click("#new-chat")
    assert chat.page.locator(".turn").count() == 0
    only_says(chat, "second")
    send(chat, "Another")
    assert chat.page.locator("#chats option").all_text_contents() == [
        "Another",
        "Text: Ada Berg is 31 years old. Schema:…",
    ]
    chat.page.select_option("#chats", index=1)
    assert chat.text(".assistant .prose") == ADA
    chat.page.once("dialog", lambda dialog: dialog.dismiss())
    chat.page.click("#delete-chat")
    assert chat.page.locator(".turn").count() == 2
    chat.page.once("dialog", lambda dialog: dialog.accept())
    chat.page.click("#delete-chat")
    assert chat.page.locator(".turn").count() == 0
    kept = chat.page.evaluate("JSON.parse(localStorage.getItem('weft-chats')).chats")
    assert [chat["messages"][0]["content"] for chat in kept] == ["Another"]


def test_again_repeats_the_last_answer(chat: Tab) -> None:
    chat.run()
    chat.page.click("text=Again")
    chat.ready()
    assert [body["messages"] for body in chat.asked[-2:]] == [[{"role": "user", "content": QUESTION}]] * 2
    assert chat.page.locator(".turn").count() == 2 and chat.text(".assistant .prose") == ADA


def test_an_edited_message_begins_the_chat_again_from_there(chat: Tab) -> None:
    chat.run()
    send(chat, TOM)
    chat.page.locator("text=Edit").first.click()
    field = chat.page.locator(".turn.user textarea")
    assert field.input_value() == QUESTION
    field.fill(TOM)
    field.press("Escape")
    assert chat.page.locator(".turn").count() == 4 and chat.text(".message") == QUESTION
    chat.page.locator("text=Edit").first.click()
    field.fill(TOM)
    field.press("Enter")
    chat.ready()
    assert chat.asked[-1]["messages"] == [{"role": "user", "content": TOM}]
    assert chat.page.locator(".turn").count() == 2 and "Tom Lund" in chat.text(".assistant .prose")


def test_after_an_error_the_message_stays_to_be_tried_again(chat: Tab) -> None:
    chat.guide("lark", "start: foo\nfo").run()
    assert "guide is wrong" in chat.text("#failed")
    assert chat.text(".message") == QUESTION and chat.page.locator(".assistant").count() == 0
    chat.guide("none").page.click("text=Try again")
    chat.ready()
    assert chat.asked[-1]["messages"] == [{"role": "user", "content": QUESTION}]
    assert chat.page.locator(".assistant").count() == 1


def test_a_lost_connection_says_so_and_keeps_the_part(chat: Tab) -> None:
    piece = {
        "choices": [{"delta": {"content": "part"}, "logprobs": {"content": [TOKEN]}, "finish_reason": None}]
    }
    script = """piece => {
        const send = window.fetch
        window.fetch = (path, options) => !path.includes('chat') ? send(path, options) : Promise.resolve(new Response(
            new ReadableStream({
                start(stream) {
                    stream.enqueue(new TextEncoder().encode(`data: ${piece}\n\n`))
                    const fail = () => document.querySelector('#turns .token')
                        ? stream.error(new TypeError('network error')) : setTimeout(fail, 10)
                    fail()
                },
            })))
    }"""
    chat.page.evaluate(script, json.dumps(piece))
    chat.run()
    assert "The connection broke before the answer ended." in chat.text("#failed")
    assert chat.text(".assistant .prose") == "part" and "An error ended" in chat.text(".assistant")
    chat.page.evaluate("() => { window.fetch = () => Promise.reject(new TypeError('Failed to fetch')) }")
    chat.page.click("text=Again")
    assert "The server cannot be reached." in chat.ready().text("#failed")


def test_an_answer_and_a_code_block_can_be_copied(chat: Tab) -> None:
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = "Run **this**:\n\n```sh\nls -l\n```\n"
    only_says(chat, text)
    send(chat, "go")
    assert chat.text(".prose strong") == "this" and chat.text(".code .hint") == "sh"
    clipboard = "navigator.clipboard.readText()"
    chat.page.click(".code button")
    assert chat.page.evaluate(clipboard) == "ls -l"
    chat.page.locator(".assistant > .acts >> text=Copy").click()
    assert chat.page.evaluate(clipboard) == text
    chat.page.wait_for_selector("text=Copied")


# -- tools


def with_tool(chat: Tab, choice: str) -> Tab:
    chat.page.select_option("#model", "plain")
    chat.guide("none")
    chat.page.click("#tools-box summary")
    chat.page.click("#tools-example")
    assert chat.text("#tools-verdict") == "✓ get_weather"
    chat.page.select_option("#tool-choice", choice)
    return chat


def test_a_tool_is_called_and_its_result_sent(chat: Tab) -> None:
    with_tool(chat, "required")
    send(chat, "Weather in Oslo?")
    body = chat.asked[-1]
    assert body["tool_choice"] == "required" and body["tools"][0]["function"]["name"] == "get_weather"
    assert re.search(r"get_weather\(\{\s*\"city\":", chat.text(".call pre"))
    chat.page.reload()  # the call waits for its result
    chat.ready()
    chat.page.fill(".call textarea", '{"celsius": 3}')
    chat.page.select_option("#model", "plain")
    chat.page.select_option("#tool-choice", "auto")
    chat.page.click("text=Send result")
    chat.ready()
    question, call, result = chat.asked[-1]["messages"]
    assert question == {"role": "user", "content": "Weather in Oslo?"}
    assert call["role"] == "assistant" and "city" in json.loads(
        call["tool_calls"][0]["function"]["arguments"]
    )
    assert result == {
        "role": "tool",
        "content": '{"celsius": 3}',
        "tool_call_id": call["tool_calls"][0]["id"],
    }
    assert chat.text(".turn.tool pre") == '{"celsius": 3}'


def test_wrong_tools_are_said_to_be_wrong(chat: Tab) -> None:
    chat.page.click("#tools-box summary")
    for text, said in (
        ("[{", "the tools are not valid JSON"),
        ('[{"name": "f"}]', "tool 1: write a list of"),
    ):
        chat.page.fill("#tools", text)
        assert said in chat.text("#tools-verdict")
        assert chat.page.get_attribute("#tools", "aria-invalid") == "true"
        before = len(chat.asked)
        chat.page.fill("#prompt", "go")
        chat.run()
        assert said in chat.text("#failed") and len(chat.asked) == before


# -- Markdown


def html(chat: Tab, text: str) -> str:
    """The elements that the page makes of Markdown."""
    chat.page.evaluate("async () => { window.Prose = (await import('./page/markdown.js')).Prose }")
    made: str = chat.page.evaluate(
        "text => { const prose = new Prose(); prose.show(text); return prose.element.innerHTML }", text
    )
    return re.sub(r' (target|rel|tabindex|dir|type)="[^"]*"', "", made)


MARKDOWN = {
    "# One *two*\ntext": "<h3>One <em>two</em></h3><p>text</p>",
    "a **b** `c*d*` ~~e~~ \\*f\nline": "<p>a <strong>b</strong> <code>c*d*</code> <del>e</del> *f<br>line</p>",
    "- a\n- b\n  1. c\n  2. d\n\nend": '<ul><li>a</li><li>b<ol start="1"><li>c</li><li>d</li></ol></li></ul><p>end</p>',
    "3. a\n\n   b\n4. c": '<ol start="3"><li><p>a</p><p>b</p></li><li>c</li></ol>',
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "| a | b |\n|---|--:|\n| 1 | 2\\|3 |": '<div class="scroll"><table><thead><tr><th class="left">a</th>'
    '<th class="right">b</th></tr></thead><tbody><tr><td class="left">1</td><td class="right">2|3</td></tr></tbody>'
    "</table></div>",
    "[a](https://b.c/d_(e)) https://f.g/h.": '<p><a href="https://b.c/d_(e)">a</a> <a href="https://f.g/h">https://f.g/h</a>.</p>',
    "snake_case_name **open\n***": "<p>snake_case_name **open</p><hr>",
    "![cat](https://b.c/d.png)": '<p><a href="https://b.c/d.png">cat</a></p>',
    # hostile
    "[a](javascript:alert(1)) [b](data:text/html,x)": "<p>[a](javascript:alert(1)) [b](data:text/html,x)</p>",
    '<img src=x onerror="a()"><script>': '<p>&lt;img src=x onerror="a()"&gt;&lt;script&gt;</p>',
    '[a](https://b.c/"onclick="hit())': None,
}


def test_markdown(chat: Tab) -> None:
    for text, expected in MARKDOWN.items():
        made = html(chat, text)
        if expected is not None:
            assert made == expected
        assert not re.search(r'<(img|script)|<[^>]* on\w+="|href="(?!https?:|mailto:)', made), text


def test_a_text_that_grows_ends_as_it_would_at_once(chat: Tab) -> None:
    text = "# A\n\n- b\n- c\n\n```py\nx = 1\n\ny = 2\n```\n\n| d | e |\n|---|---|\n| 1 | 2 |\n\n> f\ng **h** [i](https://j.k)\n"
    chat.page.evaluate("async () => { window.Prose = (await import('./page/markdown.js')).Prose }")
    equal = """text => {
      const grown = new Prose()
      for (let end = 1; end <= text.length; end++) grown.show(text.slice(0, end))
      const whole = new Prose()
      whole.show(text)
      return grown.element.innerHTML === whole.element.innerHTML
    }"""
    assert chat.page.evaluate(equal, text)


HOSTILE = ["**a ", "*a ", "`a ", "[a](", "> ", "```\n", "- a\n\n", "|a", "~~a ", "https://", "_a "]


def test_hostile_text_takes_no_time(chat: Tab) -> None:
    chat.page.evaluate("async () => { window.Prose = (await import('./page/markdown.js')).Prose }")
    timed = "text => { const begin = performance.now(); new Prose().show(text); return performance.now() - begin }"
    for part in HOSTILE:
        # Milliseconds; text of quadratic time would take minutes.
        assert chat.page.evaluate(timed, part * 4000) < 5000, part


# -- what is kept


MALFORMED: list[Any] = [
    "{",
    "null",
    "7",
    '{"version": 1}',
    '{"version": 1, "chats": [7, {"id": "a", "messages": [{"role": "x"}]}]}',
]


def test_malformed_storage_counts_as_none(chat: Tab) -> None:
    for stored in MALFORMED:
        chat.page.evaluate("stored => localStorage.setItem('weft-chats', stored)", stored)
        chat.page.reload()
        chat.ready().page.click("#modes label:has([value=chat])")
        chat.run()
        assert chat.text(".assistant .prose") == ADA
        assert chat.page.evaluate("JSON.parse(localStorage.getItem('weft-chats')).chats.length") == 1


def test_full_storage_drops_the_oldest_chats_and_then_says_so(chat: Tab) -> None:
    chat.run()
    chat.page.click("#new-chat")
    # From now on the storage takes what it holds now: one chat fits, two do not.
    chat.page.evaluate(
        """() => {
          const set = Storage.prototype.setItem
          Storage.prototype.setItem = function (key, value) {
            if (value.length > window.room) throw new DOMException('full', 'QuotaExceededError')
            set.call(this, key, value)
          }
          window.room = localStorage.getItem('weft-chats').length + 20
        }"""
    )
    send(chat, "second")
    kept = chat.page.evaluate("JSON.parse(localStorage.getItem('weft-chats')).chats")
    assert [chat["messages"][0]["content"] for chat in kept] == ["second"]
    assert chat.page.is_hidden("#unkept")
    chat.page.evaluate("window.room = 10")
    send(chat, "third")
    assert chat.page.is_visible("#unkept") and chat.page.locator(".assistant").count() == 2


def test_on_a_phone_the_messages_come_first(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab(**PHONE).ready()
    tab.page.click("#modes label:has([value=chat])")
    tab.run()
    answer, guide = (tab.page.locator(part).bounding_box() for part in ("#answer-card", "#guide"))
    assert answer is not None and guide is not None and answer["y"] < guide["y"]
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390

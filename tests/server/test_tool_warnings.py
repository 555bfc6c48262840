"""A model whose chat template says nothing of tools: what the log says at the first request that has some."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.server.asking import MESSAGES, TOOLS, ask
from support.server.running import Running
from weft.server.models import Family, ServedModelConfig, family_of

GUESSED = "the chat template shows no format of tool calls, so weft uses that of qwen_3; --tool-style"
UNTOLD = "the chat template does not read tools, so the model does not see them"


def test_what_a_template_tells() -> None:
    shown = "{% for tool in tools %}{{ tool }}{% endfor %}<tool_call>\n"
    for template, style, guessed, is_told in (
        ("{{ messages }}", None, True, False),
        ("{{ messages }}", "llama", False, False),
        ("{{ tools }}", None, True, True),
        (shown, None, False, True),
        ({"default": "{{ messages }}", "tool_use": shown}, None, False, True),
        ({"default": shown, "other": "x"}, None, False, True),
        (None, None, True, False),
    ):
        found = family_of(template, ServedModelConfig(tool_style=style))
        assert found == Family(style or "qwen_3", None, guessed, is_told)


def test_it_is_logged_once(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = server.state.models["tiny"]
    monkeypatch.setattr(served, "_has_warned", False)
    asked = {"messages": MESSAGES, "max_tokens": 1}
    ask(f"{server.url}/v1/chat/completions", asked)
    assert GUESSED not in caplog.text
    for _ in range(2):
        assert ask(f"{server.url}/v1/chat/completions", {**asked, "tools": TOOLS})[0] == 200
    assert caplog.text.count(f"tiny: {GUESSED}") == caplog.text.count(f"tiny: {UNTOLD}") == 1
    caplog.clear()
    monkeypatch.setattr(served, "_has_warned", False)
    monkeypatch.setattr(served, "family", replace(served.family, is_style_guessed=False, shows_tools=True))
    ask(f"{server.url}/v1/chat/completions", {**asked, "tools": TOOLS})
    assert GUESSED not in caplog.text and UNTOLD not in caplog.text

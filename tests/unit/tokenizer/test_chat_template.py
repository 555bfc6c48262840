"""Chat templates: rendered as transformers renders them, in a sandbox, with plain data alone."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from weft import load_tokenizer, package_model_path
from weft.errors import InputError
from weft.tokenizer.chat_template import render, takes_parts
from weft.tokenizer.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}
    {%- set ns.last = loop.index0 %}
    {%- if message.role == "assistant" and message.tool_calls %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- call.function.name }}{{- '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- elif message.reasoning_content is defined %}
        {{- '<think>' + message.reasoning_content + '</think>' + message.content }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' + '\\n' }}
    {%- endif %}
    {%- if loop.index0 > 90 %}{%- break %}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
LLAMA = """{{ bos_token }}{% for message in messages %}
    {%- if message['role'] not in ['user', 'assistant', 'system', 'tool'] %}
        {{- raise_exception('roles are user and assistant') }}
    {%- endif %}
    {%- if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}
    {%- elif message.content is string %}[{{ message.role }}] {{ message.content }}
    {%- else %}{% for content in message.content %}{{ content.text | trim }}|{% endfor %}
    {%- endif %}
{% endfor %}
{{ documents | tojson(indent=2) if documents else '' }}{{ dict(a=1) | tojson }}
{{ dict.fromkeys(['é', 'b'], 1) | tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=true) }}
{{ strftime_now('%Y') }}
{% if add_generation_prompt %}[go]{% endif %}"""

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": "<é>", "y": [1, None]}}}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "  Hello <b>\n"}],
    "turns": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?", "thinking": "hm"},
        {"role": "user", "content": "Bye "},
    ],
    "tools": [
        {"role": "user", "content": "Call f"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ],
}
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "äö", "parameters": {"type": "object"}}}
]


def theirs(template: str, chat: list[dict[str, Any]], **options: Any) -> str:
    kept = [{key: value for key, value in message.items() if value is not None} for message in chat]
    text: str = render_jinja_template([kept], chat_template=template, **options)[0][0]
    return text


@pytest.mark.parametrize("prompts", [False, True])
@pytest.mark.parametrize(
    ("template", "chat", "tools"),
    [
        (CHATML, "one", None),
        (CHATML, "turns", None),
        (QWEN, "one", None),
        (QWEN, "turns", TOOLS),
        (QWEN, "tools", TOOLS),
        (LLAMA, "one", None),
        (LLAMA, "turns", None),
    ],
)
def test_conversations_are_rendered_as_transformers_does(
    template: str, chat: str, tools: Any, prompts: bool
) -> None:
    arguments = {"bos_token": "<s>", "enable_thinking": False, "documents": [{"title": "é"}]}
    ours = render(template, CHATS[chat], arguments, tools=tools, add_generation_prompt=prompts)
    assert ours == theirs(template, CHATS[chat], tools=tools, add_generation_prompt=prompts, **arguments)


@pytest.mark.parametrize("template", [CHATML, QWEN, LLAMA], ids=["chatml", "qwen", "llama"])
@pytest.mark.parametrize("content", ["The answer is", "with a space ", "  around  "])
def test_the_last_message_is_continued_as_transformers_does(template: str, content: str) -> None:
    for role in ("user", "assistant"):
        chat = [*CHATS["one"], {"role": role, "content": content}]
        ours = render(template, chat, {"bos_token": ""}, continue_final_message=True)
        assert ours == theirs(template, chat, bos_token="", continue_final_message=True)


def test_parts_are_continued() -> None:
    chat = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two "}]}]
    assert render(LLAMA, chat, {"bos_token": ""}, continue_final_message=True) == theirs(
        LLAMA, chat, bos_token="", continue_final_message=True
    )


def test_which_templates_take_parts() -> None:
    assert [takes_parts(template) for template in (CHATML, QWEN, LLAMA)] == [False, False, True]
    assert takes_parts("{% for part in m['content'] %}{% endfor %}")
    assert takes_parts("{% for item in message.content %}{{ item }}{% endfor %}")
    assert not takes_parts("{% for message in messages %}{{ message.content }}{% endfor %}")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no system message') }}", "no system message"),
        ("{% for %}", "line 1"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% set ns = namespace(a=1) %}{% set ns.__class__ = 1 %}", "namespace may not hold"),
        ("{{ namespace(_a=1) }}", "namespace may not hold"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_what_a_template_may_not_do_is_an_input_error(template: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        render(template, CHATS["one"], {})


def test_conversations_hold_plain_data() -> None:
    class Pydantic:
        def model_dump(self) -> dict[str, Any]:
            return {"role": "user", "content": "Hi"}

    assert "Hi" in render(CHATML, [Pydantic()], {})  # type: ignore[list-item]
    with pytest.raises(InputError, match="contain a object"):
        render(CHATML, [{"role": "user", "content": object()}], {})


def test_the_two_ways_to_go_on_exclude_each_other() -> None:
    with pytest.raises(InputError, match="give one"):
        render(CHATML, CHATS["one"], {}, add_generation_prompt=True, continue_final_message=True)
    with pytest.raises(InputError, match="needs a last message with a text"):
        render(QWEN, CHATS["tools"][:2], {}, continue_final_message=True)
    with pytest.raises(InputError, match="does not show the last message"):
        render("{{ messages[0].role }}", CHATS["one"], {}, continue_final_message=True)


def test_a_tokenizer_has_one_template_or_several_by_name() -> None:
    tiny = load_tokenizer(package_model_path())
    chat = CHATS["one"]
    text = tiny.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert tiny.apply_chat_template(chat, add_generation_prompt=True) == tiny.encode(
        text, add_special_tokens=False
    )
    several = Tokenizer(
        tiny.backend_tokenizer, chat_template={"default": CHATML, "tool_use": QWEN, "own": "{{ x }}"}
    )
    assert several.apply_chat_template(chat, tokenize=False) == render(CHATML, chat, {})
    assert several.apply_chat_template(chat, tools=TOOLS, tokenize=False) == render(
        QWEN, chat, {}, tools=TOOLS
    )
    assert several.apply_chat_template(chat, chat_template="own", x="y", tokenize=False) == "y"
    for templates, message in ((None, "are: none"), ({"own": "x"}, "none named default, but own")):
        with pytest.raises(InputError, match=message):
            Tokenizer(tiny.backend_tokenizer, chat_template=templates).apply_chat_template(chat)


def test_a_message_without_content_is_shown_to_templates_that_want_one() -> None:
    """SmolLM2's does; others tell a call of tools by what is left out, and see it so."""
    calls = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    chat = [*CHATS["one"], {"role": "assistant", "content": None, "tool_calls": calls}]
    wants = "{% for m in messages %}{{ '<' + m['role'] + ':' + m['content'] + '>' }}{% endfor %}"
    assert render(wants, chat, {}).endswith("<assistant:>")
    assert render("{{ messages[-1].content is defined }}", chat, {}) == "False"
    with pytest.raises(InputError, match="no attribute 'nothing'"):
        render("{{ messages[-1]['nothing'].x }}", chat, {})

"""The format of tool calls that a model's chat template shows."""

from __future__ import annotations

import json

import pytest

from support.grammar.grammars import small_vocabulary
from weft.errors import GuideError
from weft.grammar import Guide, GuideCompiler, tool_style_of, tool_styles

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
QWEN = """{%- for tool_call in message.tool_calls %}
{{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- tool_call.arguments | tojson }}
{{- '}\\n</tool_call>' }}{%- endfor %}"""
LLAMA = """{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{%- set tool_call = message.tool_calls[0].function %}
{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}"""
CODER = """{{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}{{- '<parameter=' + args_name + '>\\n' }}"""
MISTRAL = (
    """{{- "[TOOL_CALLS] [" }}{%- for tool_call in message.tool_calls %}{{- tool_call.function | tojson }}"""
)


@pytest.mark.parametrize(
    ("template", "style"),
    [
        (QWEN, "qwen_3"),
        (QWEN.replace('"', '\\"'), "qwen_3"),
        (QWEN.replace("<tool_call>\\n", "<tool_call>").replace("{%-", "{{'[|assistant|]'}}{%-", 1), "exaone"),
        (LLAMA, "llama"),
        (CODER, "qwen_3_coder"),
        (CODER + "{{ '<think>' }}", "qwen_3_5"),
        (CODER.replace("<tool_call>\\n", "<tool_call>"), "mimo"),
        (MISTRAL, None),
        ("{{ messages[0].content }}", None),
        ({"default": "{{ messages[0].content }}", "tool_use": QWEN}, "qwen_3"),
        ({"default": QWEN}, "qwen_3"),
        ("", None),
        (None, None),
    ],
)
def test_templates_show_their_style(template: str | dict[str, str] | None, style: str | None) -> None:
    assert tool_style_of(template) == style


TOLD_BY_MORE = {
    "llama": "<|start_header_id|> tool_calls",
    "qwen_3_5": "<think>",
    "exaone": "[|assistant|]",
    "harmony": "<|channel|>commentary to=functions",
}
"""What templates of a style have beside their calls."""


@pytest.mark.parametrize("style", tool_styles())
def test_the_calls_that_a_style_writes_are_told_apart(style: str) -> None:
    """What XGrammar writes a call with, as a template would have it."""
    guide = Guide.tools(TOOLS, style=style, required=True)
    shown = json.dumps(json.loads(guide.source), ensure_ascii=False).replace("\\\\", "\\")
    shown = shown.replace("<think>", "")  # forbidden there, rather than written
    assert tool_style_of(shown + TOLD_BY_MORE.get(style, "")) == style


def test_the_style_auto_is_that_of_the_model() -> None:
    guide = Guide.tools(TOOLS, required="f", parallel=False, max_whitespace=3)
    named = Guide.tools(TOOLS, style="qwen_3", required="f", parallel=False, max_whitespace=3)
    assert guide.of_model(QWEN) == named and guide != named
    assert guide.of_model(QWEN).strict and not Guide.tools(TOOLS, strict=False).of_model(QWEN).strict
    assert named.of_model(None) is named
    with pytest.raises(GuideError, match=r"shows no known format .* give a style"):
        guide.of_model(MISTRAL)
    with GuideCompiler(small_vocabulary()) as compiler, pytest.raises(GuideError, match="no known format"):
        compiler.compile(guide)
    with pytest.raises(GuideError, match="two functions of one name"):
        Guide.tools(TOOLS * 2)

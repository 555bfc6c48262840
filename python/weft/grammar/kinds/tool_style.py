"""Detects the tool-call format of a model from its chat template, which writes the calls of earlier turns in it."""

from __future__ import annotations

import re
from collections.abc import Mapping

# The first style whose marks are all in the template wins, so more specific styles come first. A template may have a
# raw line break, or \n in a string literal; quotes in a literal may be escaped.
STYLES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("cohere", (r"<cofl:tool_call",)),
    ("minimax_m3", (r"\]<\]minimax\[>\[",)),
    ("minimax", (r"<minimax:tool_call>",)),
    ("deepseek_v4_1", (r"<\uff5cDSML\uff5c calls>",)),
    ("deepseek_v4", (r"<\uff5cDSML\uff5ctool_calls>",)),
    ("deepseek_v3_2", (r"<\uff5cDSML\uff5cfunction_calls>",)),
    ("deepseek_r1", (r"<\uff5ctool▁call▁begin\uff5c>", r"<\uff5ctool▁sep\uff5c>", r"```json")),
    ("deepseek_v3_1", (r"<\uff5ctool▁call▁begin\uff5c>", r"<\uff5ctool▁sep\uff5c>")),
    ("kimi", (r"<\|tool_calls_section_begin\|>", r"<\|tool_call_argument_begin\|>")),
    ("kimi_k3", (r"<\|open\|>", r"<\|sep\|>", r"call tool=")),
    ("harmony", (r"<\|channel\|>", r"to=functions")),
    ("glm_4_7", (r"<tool_call>", r"<arg_key>", r"<arg_value>")),
    ("mimo", (r"<tool_call><function=",)),
    ("qwen_3_5", (r"<tool_call>(?:\n|\\n)<function=", r"<think>")),
    ("qwen_3_coder", (r"<tool_call>(?:\n|\\n)<function=",)),
    ("exaone", (r"<tool_call>", r"\[\|assistant\|\]")),
    ("qwen_3", (r"<tool_call>(?:\n|\\n)",)),
    ("llama", (r"<\|start_header_id\|>", r'\\?"parameters\\?"', r"tool_calls")),
)


def tool_style_of(chat_template: str | Mapping[str, str] | None) -> str | None:
    """The format (one of `weft.grammar.tool_styles()`) in which a chat template writes calls; None if it shows no
    known one. Among named templates, "tool_use" is preferred to "default"."""
    if isinstance(chat_template, Mapping):
        chat_template = chat_template.get("tool_use") or chat_template.get("default")
    if not chat_template:
        return None
    return next((style for style, marks in STYLES if all(re.search(m, chat_template) for m in marks)), None)

"""The formats in which model families write reasoning and calls, found by their chat templates: `FORMATS` is the table.

A chat template writes the calls and the reasoning of earlier turns, so it shows how the model writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

ChatTemplate = str | Mapping[str, str]


@dataclass(frozen=True)
class AnswerFormat:
    """The format of a model family's answers.

    `tool_style` is the format of calls, one of `weft.grammar.tool_styles()`. A template whose text matches all of
    `shown_by` has it; a line break may be raw or written as \\n, and quotes may be escaped. `markers` are the names of
    tokens that mark parts of an answer. Where a tokenizer has them as special tokens, they are text for weft.
    `reasoning` are the begin and end of reasoning, if they are more than a pair of similar markers.
    """

    tool_style: str
    shown_by: tuple[str, ...]
    markers: tuple[str, ...] = ()
    reasoning: tuple[str, str] | None = None


_DEEPSEEK = tuple(
    f"<\uff5ctool▁{part}\uff5c>" for part in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
)
_DSML = ("\uff5cDSML\uff5c",)
_TOOL_CALL = ("<tool_call>", "</tool_call>")
_GLM = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_KIMI = (
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)
_HARMONY = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")  # others are end tokens
CHANNELS = ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>")
"""The begin of gpt-oss's reasoning, and of the message for the user after it."""
_MINIMAX = ("<minimax:tool_call>", "</minimax:tool_call>")

FORMATS = (
    AnswerFormat("cohere", (r"<cofl:tool_call",)),
    AnswerFormat("minimax_m3", (r"\]<\]minimax\[>\[",), ("]<]minimax[>[", *_TOOL_CALL)),
    AnswerFormat("minimax", (r"<minimax:tool_call>",), _MINIMAX),
    AnswerFormat("deepseek_v4_1", (r"<\uff5cDSML\uff5c calls>",), _DSML),
    AnswerFormat("deepseek_v4", (r"<\uff5cDSML\uff5ctool_calls>",), _DSML),
    AnswerFormat("deepseek_v3_2", (r"<\uff5cDSML\uff5cfunction_calls>",), _DSML),
    AnswerFormat(
        "deepseek_r1", (r"<\uff5ctool▁call▁begin\uff5c>", r"<\uff5ctool▁sep\uff5c>", r"```json"), _DEEPSEEK
    ),
    AnswerFormat("deepseek_v3_1", (r"<\uff5ctool▁call▁begin\uff5c>", r"<\uff5ctool▁sep\uff5c>"), _DEEPSEEK),
    AnswerFormat("kimi", (r"<\|tool_calls_section_begin\|>", r"<\|tool_call_argument_begin\|>"), _KIMI),
    AnswerFormat(
        "kimi_k3",
        (r"<\|open\|>", r"<\|sep\|>", r"call tool="),
        ("<|open|>", "<|close|>", "<|sep|>"),
    ),
    AnswerFormat(
        "harmony",
        (r"<\|channel\|>", r"to=functions"),
        _HARMONY,
        CHANNELS,
    ),
    AnswerFormat("glm_4_7", (r"<tool_call>", r"<arg_key>", r"<arg_value>"), (*_TOOL_CALL, *_GLM)),
    AnswerFormat("mimo", (r"<tool_call><function=",), _TOOL_CALL),
    AnswerFormat("qwen_3_5", (r"<tool_call>(?:\n|\\n)<function=", r"<think>"), _TOOL_CALL),
    AnswerFormat("qwen_3_coder", (r"<tool_call>(?:\n|\\n)<function=",), _TOOL_CALL),
    AnswerFormat("exaone", (r"<tool_call>", r"\[\|assistant\|\]"), _TOOL_CALL),
    AnswerFormat("qwen_3", (r"<tool_call>(?:\n|\\n)",), _TOOL_CALL),
    AnswerFormat("llama", (r"<\|start_header_id\|>", r'\\?"parameters\\?"', r"tool_calls")),
)
"""The formats of XGrammar. The first one that a template shows is the model's, so more specific formats come first."""

_WORD = "think|thinking|thought|thoughts|reasoning"
_PAIRS = (
    (re.compile(rf"<(?:/)?((?:\w+:)?(?:{_WORD}))>"), "<{}>", "</{}>"),
    (re.compile(rf"\[/?({_WORD})\]", re.IGNORECASE), "[{}]", "[/{}]"),
    (re.compile(rf"◁/?({_WORD})▷"), "◁{}▷", "◁/{}▷"),
    (re.compile(r"<\|(?:START|END)_(THINKING|THOUGHT|REASONING)\|>"), "<|START_{}|>", "<|END_{}|>"),
    (re.compile(rf"<\|(?:begin|end)_of_({_WORD})\|>"), "<|begin_of_{}|>", "<|end_of_{}|>"),
    (re.compile(rf"<\|(?:open|close)\|>({_WORD})<\|sep\|>"), "<|open|>{}<|sep|>", "<|close|>{}<|sep|>"),
    (re.compile(r"<\|channel>(thought)"), "<|channel>{}", "<channel|>"),  # Gemma 4
)
"""The known pairs of reasoning markers. Each entry has a pattern that matches either marker, and templates of the begin
and the end marker."""
_TOKEN = re.compile(r"<[^<>]+>|\[[^\[\]]+\]|◁[^◁▷]+▷")
"""The name of a token in a marker."""


def answer_format_of(chat_template: ChatTemplate | None) -> AnswerFormat | None:
    """The format in which a chat template writes calls; None if it shows no known one. Among named templates,
    "tool_use" is preferred to "default"."""
    if isinstance(chat_template, Mapping):
        chat_template = chat_template.get("tool_use") or chat_template.get("default")
    if not chat_template:
        return None
    text = chat_template
    return next((form for form in FORMATS if all(re.search(mark, text) for mark in form.shown_by)), None)


def tool_style_of(chat_template: ChatTemplate | None) -> str | None:
    """The name of `answer_format_of`, one of `weft.grammar.tool_styles()`; None if the template shows no known one."""
    found = answer_format_of(chat_template)
    return None if found is None else found.tool_style


def reasoning_markers(chat_template: ChatTemplate | None) -> tuple[str, str] | None:
    """The begin and end markers of reasoning that a chat template mentions first; None if it has none."""
    found = answer_format_of(chat_template)
    if found is not None and found.reasoning is not None:
        return found.reasoning
    if isinstance(chat_template, Mapping):
        chat_template = chat_template.get("default")
    matches = [
        (match.start(), match[1], begin, end)
        for pattern, begin, end in _PAIRS
        if (match := pattern.search(chat_template or ""))
    ]
    if not matches:
        return None
    _, word, begin, end = min(matches)
    return begin.format(word), end.format(word)


def marker_tokens(chat_template: ChatTemplate | None) -> frozenset[str]:
    """The names that tokens with a part in the format of answers may have."""
    found, pair = answer_format_of(chat_template), reasoning_markers(chat_template) or ()
    names = (name for marker in pair for name in _TOKEN.findall(marker))
    return frozenset((*(found.markers if found else ()), *names))


def starts_inside(rendered_prompt: str, begin: str, end: str) -> bool:
    """Whether the prompt already opens the reasoning, so that no `end` comes after its last `begin`."""
    return rendered_prompt.rfind(begin) > rendered_prompt.rfind(end)

"""Writes arguments in each XML style."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

BLANKS = ["", " ", "\n", "\n\n"]
Schema = dict[str, Any]
Flat = Callable[[str, str, bool, str], str]
"""Writes a parameter from its name, its value's text, whether the value is a string, and the value's type."""


def flat(parameter: Flat, *, pads_texts: bool = True) -> Callable[[Any, Schema, random.Random], str]:
    """Make the writer of a style whose values are JSON."""

    def write(value: dict[str, Any], schema: Schema, rng: random.Random) -> str:
        texts = []
        for key, each in value.items():
            is_text = isinstance(each, str)
            text = each if is_text else json.dumps(each, ensure_ascii=False)
            is_any = "type" not in schema["properties"][key] and pads_texts
            if is_any or not is_text:
                text = rng.choice(BLANKS) + text + rng.choice(BLANKS)
            kind = type_of(each)
            texts.append(rng.choice(BLANKS) + parameter(key, text, is_text, kind))
        return "".join(texts) + (rng.choice(BLANKS) if texts else "")

    return write


def type_of(value: Any) -> str:
    kinds = {str: "string", int: "number", float: "number", bool: "boolean", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def dsml(marker: str) -> Flat:
    def parameter(key: str, text: str, is_text: bool, kind: str) -> str:
        says = "true" if is_text else "false"
        return f'<{marker}parameter name="{key}" string="{says}">{text}</{marker}parameter>'

    return parameter


def kimi(key: str, text: str, is_text: bool, kind: str) -> str:
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{text}<|close|>argument<|sep|>'


def cohere(value: dict[str, Any], schema: Schema, rng: random.Random) -> str:
    return "".join(rng.choice(BLANKS) + _cohere(f' name="{key}"', each, rng) for key, each in value.items())


def _cohere(name: str, value: Any, rng: random.Random) -> str:
    if isinstance(value, dict):
        kind, text = "dict", cohere(value, {}, rng)
    elif isinstance(value, list):
        kind, text = "list", "".join(_cohere("", item, rng) for item in value)
    else:
        kind, text = ("raw", value) if isinstance(value, str) else ("json", json.dumps(value))
    return f'<cofl:value{name} type="{kind}">{text}</cofl:value>'


def minimax_m3(value: dict[str, Any], schema: Schema, rng: random.Random) -> str:
    return "".join(rng.choice(BLANKS) + _minimax_m3(key, each, rng) for key, each in value.items())


def _minimax_m3(name: str, value: Any, rng: random.Random) -> str:
    if isinstance(value, dict):
        text = minimax_m3(value, {}, rng)
    elif isinstance(value, list):
        text = "".join(_minimax_m3("item", item, rng) for item in value)
    else:
        text = value if isinstance(value, str) else json.dumps(value)
    return f"]<]minimax[>[<{name}>{text}]<]minimax[>[</{name}>"


WRITERS = {
    "qwen_xml": flat(lambda key, text, _, __: f"<parameter={key}>{text}</parameter>"),
    "minimax_xml": flat(lambda key, text, _, __: f'<parameter name="{key}">{text}</parameter>'),
    "glm_xml": flat(lambda key, text, _, __: f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>"),
    "deepseek_xml": flat(dsml("\uff5cDSML\uff5c"), pads_texts=False),
    "deepseek_v4_1_xml": flat(dsml("\uff5cDSML\uff5c "), pads_texts=False),
    "kimi_k3_xml": flat(kimi),
    "cohere_xml": cohere,
    "minimax_m3_xml": minimax_m3,
}

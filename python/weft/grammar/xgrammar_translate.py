"""Guides and vocabularies in XGrammar's terms, and what of a guide XGrammar would not enforce."""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import xgrammar as xgr
from pydantic import ValidationError

from weft import registry
from weft.errors import GuideError
from weft.grammar import json_schema
from weft.grammar.guide import Guide, GuideWarning
from weft.grammar.tokenizer import Vocabulary

MAX_ERROR = 500
T = TypeVar("T")


def parse_regex(pattern: str) -> xgr.Grammar:
    """Raises `GuideError` for a regular expression that XGrammar does not take."""
    return translated("regex", lambda: xgr.Grammar.from_regex(pattern))


def parse_ebnf(grammar: str) -> xgr.Grammar:
    """Raises `GuideError` for a grammar with a syntax error or without a root."""
    return translated("EBNF", lambda: xgr.Grammar.from_ebnf(grammar))


def check_structural_tag(tag: str) -> None:
    """Raises `GuideError` for what is no structural tag, without translating its parts, which may take long."""
    try:
        data = json.loads(tag)
        if not isinstance(data, dict) or "format" not in data:
            raise GuideError("structural tag: it must have a format")
        xgr.StructuralTag.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "/".join(map(str, first["loc"]))
        raise GuideError(f"structural tag: at {place}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, GuideError):
            raise
        raise GuideError(f"structural tag: it is no JSON that can be read: {error}") from None


def parse_choice(choices: list[str]) -> xgr.Grammar:
    """Raises `GuideError` for a text that XGrammar's grammars can't spell."""
    if any("\0" in choice for choice in choices):
        raise GuideError("choice: XGrammar's grammars can't spell a NUL character")
    return parse_ebnf("root ::= " + " | ".join(_ebnf_literal(choice) for choice in choices))


def _ebnf_literal(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    escaped = "".join(escapes.get(char, char) for char in text)
    # A literal of its own ends behind each: XGrammar takes hexadecimal digits that follow for the escape's.
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f'\\x{ord(match[0]):02x}" "', escaped) + '"'


def parse_structural_tag(tag: str) -> xgr.Grammar:
    """Raises `GuideError` for what is no structural tag."""
    return translated("structural tag", lambda: xgr.Grammar.from_structural_tag(tag))


def parse_json_schema(
    schema: str,
    max_whitespace: int | None,
    any_order: bool = False,
    separators: tuple[str, str] | None = None,
) -> xgr.Grammar:
    """Raises `GuideError` for a schema that XGrammar can't express."""
    opened = json.dumps(opened_schema(json.loads(schema)))
    if separators is None:
        blanks: dict[str, Any] = {"max_whitespace_cnt": max_whitespace}
    else:
        blanks = {"any_whitespace": False, "separators": separators}
    return translated(
        "JSON schema", lambda: xgr.Grammar.from_json_schema(opened, any_order=any_order, **blanks)
    )


def opened_schema(schema: Any) -> Any:
    """The schema with what XGrammar would close by itself left open: an object that names no properties may
    have any, an array that says nothing of its items may hold any.
    """
    schema = json.loads(json.dumps(schema))
    for _, node in json_schema.subschemas(schema):
        if node.get("type") == "object" and not set(node) & {
            "properties",
            "patternProperties",
            "propertyNames",
            "additionalProperties",
            "unevaluatedProperties",
        }:
            node["additionalProperties"] = True
        if node.get("type") == "array" and not set(node) & {"items", "prefixItems", "unevaluatedItems"}:
            node["items"] = True
    return schema


def grammar_of(guide: Guide) -> xgr.Grammar:
    """The guide, translated, with a root that no rule names. Raises `GuideError`.

    XGrammar fills the masks of the root as if nothing could follow it. Where the root stands within itself,
    tokens that close two of its levels at once ("]]") would be forbidden.
    """
    grammar = _translate(guide)
    root_names = re.findall(r"\broot\b(?! ::=)", str(grammar))
    return xgr.Grammar.union(grammar) if root_names else grammar


def _translate(guide: Guide) -> xgr.Grammar:
    if guide.kind in registry.GUIDES:
        raise GuideError(f"a guide of the kind {guide.kind} is no grammar")
    if guide.kind == "json_schema":
        return parse_json_schema(guide.source, guide.max_whitespace, guide.any_order, guide.separators)
    if guide.kind == "regex":
        return parse_regex(guide.source)
    if guide.kind == "ebnf":
        return parse_ebnf(guide.source)
    if guide.kind == "choice":
        return parse_choice(json.loads(guide.source))
    if guide.kind == "lark":
        raise GuideError("Lark: XGrammar has no Lark; use LLGuidance for it, or Guide.ebnf")
    if guide.kind == "structural_tag":
        return parse_structural_tag(guide.source)
    return guide.payload if guide.kind == "grammar" else guide.payload.grammar


def ignored(guide: Guide) -> list[str]:
    """What XGrammar would not enforce, one line each."""
    if guide.kind != "json_schema":
        return []
    schema = json.loads(guide.source)
    return json_schema.check(schema) + (unordered(schema) if guide.any_order else [])


def unordered(schema: Any) -> list[str]:
    """What XGrammar does not enforce of a schema whose properties come in any order: they are only counted."""
    if any(node.get("properties") or node.get("required") for _, node in json_schema.subschemas(schema)):
        return ["any_order: required is not enforced, and a property may come twice"]
    return []


def report_ignored(guide: Guide) -> None:
    """Warns of what XGrammar would not enforce. Raises `GuideError` where the guide is strict."""
    lines = ignored(guide)
    if not lines:
        return
    text = "JSON schema, by XGrammar: " + "; ".join(lines)
    if guide.strict:
        raise GuideError(text)
    warnings.warn(text, GuideWarning, stacklevel=3)


def translated(what: str, call: Callable[[], T]) -> T:
    """Runs `call`; XGrammar's errors become `GuideError`, without the place in its sources."""
    try:
        return call()
    except (RuntimeError, ValueError, TypeError) as error:
        text = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(error)).strip()
        if len(text) > MAX_ERROR:
            text = f"{text[:MAX_ERROR]}..."  # XGrammar's texts may hold all that it was given
        raise GuideError(f"{what}: {text}") from None  # the text says all


@functools.lru_cache(maxsize=4)
def _tokenizer_info(fingerprint: str, vocabulary: Vocabulary) -> xgr.TokenizerInfo:
    return translated(
        "vocabulary",
        lambda: xgr.TokenizerInfo(
            list(vocabulary.tokens),
            vocab_type=xgr.VocabType.RAW,
            vocab_size=vocabulary.vocab_size,
            stop_token_ids=list(vocabulary.end_ids),
        ),
    )


def tokenizer_info(vocabulary: Vocabulary) -> xgr.TokenizerInfo:
    """XGrammar's view of a vocabulary; built once for each of the last few."""
    return _tokenizer_info(vocabulary.fingerprint, vocabulary)

"""Translates guides and vocabularies for XGrammar, and finds the parts of a guide that XGrammar would not enforce."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import xgrammar as xgr
from pydantic import ValidationError

from weft import _core, registry
from weft.errors import GuideError
from weft.grammar.guide import TIDY, Guide
from weft.grammar.notes import Findings, Place, shortened, where
from weft.grammar.schema import structure as json_schema
from weft.grammar.schema.rewrite import Rewritten, in_some_orders, rewrite, rewritten
from weft.grammar.tag_forms import tag_of
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.grammar.xgrammar import schema as xgrammar_schema
from weft.grammar.xgrammar.lengths import with_lengths
from weft.grammar.xgrammar.patterns import check_anchors, check_regex
from weft.grammar.xgrammar.rules import regexes
from weft.grammar.xgrammar.separators import LAYOUT, separated
from weft.grammar.xgrammar.utf8 import kept_to_utf8

_core.hush_xgrammar()  # XGrammar's warnings would print clients' texts; clients get notes and errors instead

MAX_ERROR = 500
T = TypeVar("T")


def parse_regex(pattern: str) -> xgr.Grammar:
    """The grammar of a regular expression. Raises `GuideError` if XGrammar refuses it, and for anchors inside it."""
    check_anchors(pattern)
    return translated("regex", lambda: xgr.Grammar.from_regex(pattern))


def parse_ebnf(grammar: str) -> xgr.Grammar:
    """Parse a grammar in EBNF. Raises `GuideError` for a syntax error, or a grammar without a root."""
    return translated("EBNF", lambda: xgr.Grammar.from_ebnf(grammar))


def check_structural_tag(tag: str) -> None:
    """Raise `GuideError` for a text that is not a structural tag. The parts inside are not checked, because translating
    them may take long."""
    try:
        data = tag_of(tag)
        if not isinstance(data, dict) or "format" not in data:
            raise GuideError("structural tag: it must have a format (or structures and triggers)")
        xgr.StructuralTag.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "/".join(map(str, first["loc"]))
        raise GuideError(f"structural tag: at {place}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, GuideError):
            raise
        raise GuideError(f"structural tag: it is not valid JSON: {error}") from None


def parse_choice(choices: list[str]) -> xgr.Grammar:
    """The grammar of a list of texts. Raises `GuideError` for a NUL character, which XGrammar's EBNF can't express."""
    if any("\0" in choice for choice in choices):
        raise GuideError("choice: XGrammar's grammars can't spell a NUL character")
    return parse_ebnf("root ::= " + " | ".join(_ebnf_literal(choice) for choice in choices))


def _ebnf_literal(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    escaped = "".join(escapes.get(char, char) for char in text)
    # End the literal after each escape, because XGrammar reads further hexadecimal digits as part of the escape.
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f'\\x{ord(match[0]):02x}" "', escaped) + '"'


def parse_json_schema(guide: Guide) -> xgr.Grammar:
    """The grammar of a guide's schema, before `_kept_to_json`. Raises `GuideError` for a schema that XGrammar can't
    express."""
    rewritten_schema = in_some_orders(guide)
    is_open = rewritten_schema.is_open(guide.open_objects)
    opened = xgrammar_schema.without_barred(
        xgrammar_schema.opened_schema(rewritten_schema.schema, is_open), is_open
    )
    opened = xgrammar_schema.spelled_schema(opened)
    max_whitespace = LAYOUT if has_separators(guide) else guide.max_whitespace
    return translated(
        "JSON schema",
        lambda: xgr.Grammar.from_json_schema(
            json.dumps(opened), any_order=guide.any_order, max_whitespace_cnt=max_whitespace
        ),
    )


def grammar_of(guide: Guide) -> xgr.Grammar:
    """Translate a guide to a grammar whose root no rule refers to. Raises `GuideError`."""
    return translated("guide", lambda: xgr.Grammar.deserialize_json(serialised(guide)))


def serialised(guide: Guide) -> str:
    """The grammar of `grammar_of` in XGrammar's serialization. Raises `GuideError`."""
    grammar = _translate(guide)
    if guide.kind in ("json_schema", "structural_tag"):
        grammar = _kept_to_json(grammar, guide)
    # XGrammar fills the masks of the root rule as if no text could follow it. In a recursive root, a token that closes
    # two levels at once ("]]") would be forbidden. The union makes a new root.
    root_names = re.findall(r"\broot\b(?! ::=)", str(grammar))
    text = kept_to_utf8((xgr.Grammar.union(grammar) if root_names else grammar).serialize_json())
    if guide.kind not in ("json_schema", "structural_tag"):
        for pattern in regexes(text):
            check_regex(pattern)
    return text


# Parts of XGrammar's EBNF and their replacements: a character of a string with length bounds, and a \u escape.
BOUNDED, STRICT = r"([^\"\\\r\n])", r"([^\0-\x1f\"\\])"
ESCAPE, OF_CONTROL = '("u" [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9])', '("u00" [01] [A-Fa-f0-9])'

# An empty text in a sequence: XGrammar prints it, and leaves it out when it parses the text.
EMPTY = re.compile(r'(?<=\()"" (?!\|)')


def _kept_to_json(grammar: xgr.Grammar, guide: Guide) -> xgr.Grammar:
    """Write the separators (`separators.py`) and the rules of strings with length bounds (`lengths.py`), and fix two
    bugs of XGrammar's JSON grammars. A string with length bounds may have raw control characters. An additional
    property may repeat a listed name, spelled with escapes. A grammar that does not survive printing and parsing, such
    as that of some tags, stays as it is."""
    text = EMPTY.sub("", str(grammar))
    kept = with_lengths(text.replace(BOUNDED, STRICT))
    if has_separators(guide):
        kept = separated(kept, guide.separators, has_constants=_is_only_json(guide))
    if _names_and_others(guide):
        kept = kept.replace(ESCAPE, OF_CONTROL)
    if kept == text or (guide.kind != "json_schema" and not _is_parsed(text)):
        return grammar
    return parse_ebnf(kept)


def _is_parsed(text: str) -> bool:
    """Whether XGrammar parses the EBNF that it printed to the same grammar."""
    try:
        return str(xgr.Grammar.from_ebnf(text)) == text
    except RuntimeError:
        return False


def has_separators(guide: Guide) -> bool:
    """Whether the only whitespace between the guide's JSON tokens is that of commas and colons."""
    return guide.separators is not None or guide.max_whitespace == TIDY


def _is_only_json(guide: Guide) -> bool:
    """Whether no schema of the guide is written as XML, where a text that looks like JSON may be a raw string."""
    return guide.kind == "json_schema" or all(
        form.in_json for form in read_tag(guide.source, guide.open_objects).forms
    )


def _names_and_others(guide: Guide) -> bool:
    if guide.kind == "json_schema":
        rewritten_schema = rewritten(guide)
        is_open = rewritten_schema.is_open(guide.open_objects)
        return xgrammar_schema.names_and_others(rewritten_schema.schema, is_open)
    return read_tag(guide.source, guide.open_objects).names_and_others


def _translate(guide: Guide) -> xgr.Grammar:
    if guide.kind in registry.GUIDES:
        raise GuideError(f"a guide of the kind {guide.kind} is not a grammar")
    if guide.kind == "json_schema":
        return parse_json_schema(guide)
    if guide.kind == "regex":
        return parse_regex(guide.source)
    if guide.kind == "ebnf":
        return parse_ebnf(guide.source)
    if guide.kind == "choice":
        return parse_choice(json.loads(guide.source))
    if guide.kind == "lark":
        raise GuideError("Lark: XGrammar has no Lark; use LLGuidance for it, or Guide.ebnf")
    if guide.kind == "structural_tag":
        tag = read_tag(guide.source, guide.open_objects)
        return translated("structural tag", lambda: xgr.Grammar.from_structural_tag(tag.text))
    if guide.kind == "tools":
        raise GuideError("the format of these tools depends on the model's chat template; give a style")
    return guide.payload if guide.kind == "grammar" else guide.payload.grammar


def not_enforced(guide: Guide) -> Findings:
    """The keywords that XGrammar does not enforce in a guide, with their places."""
    if guide.kind == "json_schema":
        rewritten_schema = rewritten(guide)
        is_open = rewritten_schema.is_open(guide.open_objects)
        ignored = xgrammar_schema.not_enforced(
            rewritten_schema.schema, guide.any_order, is_open, places=rewritten_schema.places
        )
        return chain(json_schema.misspelled(json.loads(guide.source)), ignored)
    if guide.kind == "structural_tag":
        return read_tag(guide.source, guide.open_objects).not_enforced()
    return ()


def not_enforced_in_strict_parts(guide: Guide) -> Findings:
    """The keywords that XGrammar does not enforce in the strict parts of a tag, with their places. The guide itself is
    not strict."""
    if guide.kind == "structural_tag":
        return read_tag(guide.source, guide.open_objects).not_enforced(of_strict=True)
    return ()


def translated(subject: str, call: Callable[[], T]) -> T:
    """Call `call`, and turn XGrammar's errors into `GuideError`, without the location in XGrammar's sources."""
    try:
        return call()
    except (RuntimeError, ValueError, TypeError) as error:
        text = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(error)).strip()
        if len(text) > MAX_ERROR:
            text = f"{text[:MAX_ERROR]}..."  # XGrammar's errors may repeat the whole input
        raise GuideError(f"{subject}: {text}") from None


@functools.lru_cache(maxsize=4)
def tokenizer_info(vocabulary: Vocabulary) -> xgr.TokenizerInfo:
    """The `xgrammar.TokenizerInfo` of a vocabulary, cached for the last few vocabularies."""
    return translated(
        "vocabulary",
        lambda: xgr.TokenizerInfo(
            list(vocabulary.tokens),
            vocab_type=xgr.VocabType.RAW,
            vocab_size=vocabulary.vocab_size,
            stop_token_ids=list(vocabulary.end_ids),
        ),
    )


MAX_BEGIN = 60


@dataclass(frozen=True)
class _Form:
    """A schema inside a tag. `begin` is the begin of the tag around it, `misspelled` the keywords that the schema
    misspells, and `found` the rewritten schema. With `is_strict` it must be enforced in full, even if the guide is not
    strict."""

    place: Place
    begin: str
    any_order: bool
    misspelled: tuple[tuple[Place | None, str], ...]
    found: Rewritten
    is_open: bool
    is_strict: bool
    in_json: bool


@dataclass(frozen=True)
class Tag:
    """A structural tag, translated for XGrammar, and the schemas inside."""

    text: str
    forms: tuple[_Form, ...]

    @property
    def names_and_others(self) -> bool:
        """Whether some object has patterns of names, or lists properties and allows other names, too."""
        return any(xgrammar_schema.names_and_others(form.found.schema, form.is_open) for form in self.forms)

    def not_enforced(self, *, of_strict: bool = False) -> Findings:
        """The keywords that XGrammar does not enforce in the schemas inside (with `of_strict`, in the strict ones
        only), with their places."""
        for form in self.forms:
            if of_strict and not form.is_strict:
                continue
            suffix = (
                f" (in the tag that begins with {shortened(repr(form.begin), MAX_BEGIN)})"
                if form.begin
                else ""
            )
            ignored = xgrammar_schema.not_enforced(
                form.found.schema, form.any_order, form.is_open, form.found.places, form.in_json
            )
            for place, description in chain(form.misspelled, ignored):
                yield _below(form.place, place), description + suffix


@functools.lru_cache(maxsize=2)
def read_tag(source: str, open_objects: bool) -> Tag:
    """Parse a tag, and rewrite its schemas like those of other guides (`weft.grammar.schema.rewrite`). A schema whose
    values are written as XML or exclude some texts is not rewritten, because XGrammar depends on its exact form.
    Raises `GuideError` for an invalid schema, or one that no value satisfies."""
    tag = tag_of(source)
    forms = []
    for pattern in _patterns(tag):
        check_regex(pattern)
    for place, node, begin in _schemas(tag):
        schema = node["json_schema"]
        json_schema.check(schema)
        misspelled = tuple(json_schema.misspelled(schema))
        rewritten_schema, is_open = Rewritten(schema), open_objects
        is_plain = node.get("style", "json") == "json" and not node.get("excludes")
        if is_plain:
            rewritten_schema = rewrite(schema, open_objects)
            is_open = rewritten_schema.is_open(open_objects)
            if rewritten_schema.schema is False:
                raise GuideError(f"structural tag at {where(place)}: nothing can satisfy the schema")
        if is_plain or open_objects:
            node["json_schema"] = xgrammar_schema.opened_schema(rewritten_schema.schema, is_open)
        node["json_schema"] = xgrammar_schema.without_barred(node["json_schema"], is_open)
        in_json = node.get("style", "json") == "json"
        node["json_schema"] = xgrammar_schema.spelled_schema(node["json_schema"], in_json)
        forms.append(
            _Form(
                Place(place, "json_schema"),
                begin,
                bool(node.get("any_order")),
                misspelled,
                rewritten_schema,
                is_open,
                node.pop("strict", None) is True,
                in_json,
            )
        )
    return Tag(json.dumps(tag), tuple(forms))


def _patterns(tag: Any) -> Iterator[str]:
    """Yield the regular expressions of a tag that are not inside a schema."""
    pending = [tag]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict) and node.get("type") != "json_schema":
            if node.get("type") == "regex" and isinstance(node.get("pattern"), str):
                yield node["pattern"]
            pending += node.values()


def _schemas(tag: Any) -> Iterator[tuple[Place | None, dict[str, Any], str]]:
    """Yield every node with a JSON schema inside a structural tag: its place, the node, and the begin of the tag around
    it."""
    pending: list[tuple[Place | None, Any, str]] = [(None, tag, "")]
    while pending:
        place, node, begin = pending.pop()
        if isinstance(node, list):
            pending += [(Place(place, i), item, begin) for i, item in enumerate(node)]
        elif isinstance(node, dict):
            if isinstance(node.get("begin"), str):
                begin = node["begin"]
            if node.get("type") == "json_schema" and "json_schema" in node:
                yield place, node, begin
            else:
                pending += [(Place(place, key), value, begin) for key, value in node.items()]


def _below(within: Place, place: Place | None) -> Place:
    """Prefix a place in a schema with the place of the schema itself."""
    parts = []
    while place is not None:
        parts.append(place.part)
        place = place.parent
    for part in reversed(parts):
        within = Place(within, part)
    return within

"""What a guide may cost before it fails: `CompileLimits`, and the checks that need nothing but its text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from weft import _core
from weft.errors import GuideError
from weft.grammar.chains import chain_length
from weft.grammar.guide import Guide
from weft.grammar.tag_forms import depth_of_texts, tag_of


@dataclass(frozen=True)
class CompileLimits:
    """What a guide may cost before it fails.

    - `max_source_bytes` bytes of its text, and brackets that nest `max_depth` deep in it.
    - `max_chain` levels below one another, through references, rules and groups: libraries recurse with them.
    - Before XGrammar, whose compile time grows with them: `max_choices` values in all enumerations, and as many
      alternatives in all of a regular expression or grammar; `max_properties` properties in all of a schema;
      `max_repeat` positions that a repeat expands to, repeats within it included (`maxLength`, `{n,m}`);
      `max_least_bytes` bytes of the shortest text of each rule, since XGrammar spells forced text to its end.
    - LLGuidance has its own bounds on what a compile and a mask cost; `time_s` and `memory_bytes` tighten them.
    - `time_s` seconds of compiling, and `memory_bytes` bytes of what comes out. Where guides are tried first
      (`untrusted`), compiling itself may take no more than `memory_bytes` either, and a mask with the token after it
      no more than `mask_time_s` seconds of a CPU, along walks of some hundred tokens and, by what these take,
      `answer_tokens` further on.
    - `max_abandoned` compiles may be past their time, half of them one client's; while so many are, new guides are
      refused. At most `max_waiting` guides of a client wait for their compile.
    """

    max_source_bytes: int = 1 << 20
    max_depth: int = 128
    max_chain: int = 2_000
    max_choices: int = 100_000
    max_properties: int = 5_000
    max_repeat: int = 1_000_000
    max_least_bytes: int = 1 << 20
    time_s: float = 30.0
    memory_bytes: int = 1 << 30
    mask_time_s: float = 1.0
    answer_tokens: int = 4_096
    max_abandoned: int = 4
    max_waiting: int = 100_000

    @classmethod
    def untrusted(cls) -> CompileLimits:
        """For schemas and grammars of strangers."""
        return cls(
            max_source_bytes=256 << 10,
            max_depth=64,
            max_chain=500,
            max_choices=5_000,
            max_properties=1_000,
            max_repeat=10_000,
            max_least_bytes=64 << 10,
            time_s=10.0,
            memory_bytes=512 << 20,
            mask_time_s=0.03,
            max_waiting=256,
        )


def check_size(text: str, limits: CompileLimits) -> None:
    """Raises `GuideError` for a text that is too long, or that is none."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise GuideError(f"the guide is not text that UTF-8 can hold: {error.reason}") from None
    _check("has", size, "bytes", limits.max_source_bytes, "max_source_bytes")


def check_text(guide: Guide, limits: CompileLimits) -> None:
    """Raises `GuideError` for a text that is too long or nests too deep, or that is none."""
    check_size(guide.source, limits)
    depth = _core.json_depth(guide.source) if guide.kind in ("json_schema", "structural_tag") else 0
    _check("nests", depth, "deep", limits.max_depth, "max_depth")


def check_costs(guide: Guide, limits: CompileLimits) -> None:
    """Raises `GuideError`, naming the bound, for what XGrammar would compile for long."""
    choices = properties = 0
    for what, value in _costs(guide):
        if what == "choices":
            choices += value
        elif what == "properties":
            properties += value
        elif what == "depth":
            _check("nests", value, "levels deep", limits.max_depth, "max_depth")
        else:
            _check("has a repeat that expands to", value, "positions", limits.max_repeat, "max_repeat")
    _check("has", choices, "choices", limits.max_choices, "max_choices")
    _check("has", properties, "properties", limits.max_properties, "max_properties")


def check_chain(guide: Guide, limits: CompileLimits) -> None:
    """Raises `GuideError` for a guide that a library would descend in too deep."""
    if guide.kind == "structural_tag":
        _check("nests", depth_of_texts(guide.source), "deep", limits.max_depth, "max_depth")
    _check("has a chain of", chain_length(guide), "levels below one another", limits.max_chain, "max_chain")


def check_memory(num_bytes: int, limits: CompileLimits) -> None:
    """Raises `GuideError` for a compiled guide that holds too much."""
    _check("takes", num_bytes, "bytes of memory", limits.memory_bytes, "memory_bytes")


def _check(verb: str, value: int, what: str, limit: int, name: str) -> None:
    if value > limit:
        raise GuideError(
            f"the guide {verb} {value} {what}; at most {limit} are allowed (CompileLimits.{name})"
        )


def _costs(guide: Guide) -> Iterator[tuple[str, int]]:
    if guide.kind in ("json_schema", "structural_tag"):
        is_tag = guide.kind == "structural_tag"
        yield from _schema_costs(tag_of(guide.source) if is_tag else json.loads(guide.source))
    elif guide.kind == "choice":
        yield "choices", len(json.loads(guide.source))
    elif guide.kind in ("regex", "ebnf"):
        yield from _pattern_costs(guide.source, guide.kind == "ebnf")


BOUNDS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
DATA = {"const", "default", "examples", "enum"}


def _schema_costs(root: Any) -> Iterator[tuple[str, int]]:
    """The costs of every object in a schema, wherever a reference may lead."""
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        if not isinstance(node, dict):
            continue
        pending += [value for key, value in node.items() if key not in DATA or isinstance(value, dict)]
        yield from (("repeat", int(node[key])) for key in BOUNDS if _is_count(node.get(key)))
        if isinstance(node.get("enum"), list):
            yield "choices", len(node["enum"])
        named = [node[key] for key in ("properties", "patternProperties") if isinstance(node.get(key), dict)]
        # XGrammar counts properties with a rule for each and each number of them.
        counts = [int(node[key]) for key in ("minProperties", "maxProperties") if _is_count(node.get(key))]
        total = sum(map(len, named))
        yield "properties", total * max([1, *(min(count, total) for count in counts)])
        patterns = list(node["patternProperties"]) if isinstance(node.get("patternProperties"), dict) else []
        for pattern in (node.get("pattern"), *patterns):
            if isinstance(pattern, str):
                yield from _pattern_costs(pattern, is_ebnf=False)
        if isinstance(node.get("grammar"), str):
            yield from _pattern_costs(node["grammar"], is_ebnf=True)


def _is_count(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


# What a regular expression is made of, and a grammar: classes, escapes, and in grammars texts, names and comments. No
# part can be tried in two ways, so that a text is read in a time that grows with its length.
REPEAT = r"(?P<repeat>\{\s*+(?P<low>\d*+)\s*+,?\s*+(?P<high>\d*+)\s*+\})"
REGEX_PARTS = re.compile(
    REPEAT
    + r"|(?P<open>\()|(?P<close>\))|(?P<or>\|)|[*+?]++|(?P<plain>[^\\\[(){|*+?]++)"
    + r"|(?P<atom>\\.|\[(?:[^\]\\]++|\\.)*+\]?|.)",
    re.DOTALL,
)
EBNF_PARTS = re.compile(
    REPEAT + r"|(?P<open>\()|(?P<close>\))|(?P<or>\|)|[*+?\s]++|\#[^\n]*+|::=|(?P<plain>(?!))"
    r'|(?P<atom>"(?:[^"\\\n]++|\\.)*+"?|\[(?:[^\]\\]++|\\.)*+\]?|[\w.-]++|.)',
    re.DOTALL,
)


MOST = 10**18
"""Repeats of repeats are not counted beyond; numbers that grow with a text would make its reading quadratic."""


def _pattern_costs(text: str, is_ebnf: bool) -> Iterator[tuple[str, int]]:
    """Alternatives, how deep groups nest, and how many positions the largest repeat expands to."""
    sizes, last = [0], 0
    choices, depth, largest = 1, 0, 0
    for part in (EBNF_PARTS if is_ebnf else REGEX_PARTS).finditer(text):
        kind = part.lastgroup
        if part["repeat"] is not None:
            count = max(_number(part["high"]), _number(part["low"]))
            sizes[-1] = min(sizes[-1] + last * max(count - 1, 0), MOST)
            last = min(last * max(count, 1), MOST)
            largest = max(largest, last)
        elif kind == "open":
            sizes.append(0)
            depth = max(depth, len(sizes) - 1)
        elif kind == "close" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] = min(sizes[-1] + last, MOST)
        elif kind == "or":
            choices += 1
        elif kind == "plain":
            last = 1
            sizes[-1] += len(part[0])
        elif kind == "atom":
            last = max(len(part[0]) - 2, 1) if part[0][0] == '"' else 1
            sizes[-1] += last
    yield from (("choices", choices), ("depth", depth), ("repeat", largest))


def _number(digits: str) -> int:
    return 0 if not digits else int(digits) if len(digits) < 10 else 10**9

"""XGrammar: guides to compiled grammars, and matchers that run without Python.

The wheel's matchers are called natively, through the C interface that its own bindings use
(`csrc/matcher_xgrammar.h`). At first use a tiny grammar is walked both ways; where the two differ, or the
interface is not there, matchers are called through Python instead: slower, with the GIL, and a warning says
so.
"""

from __future__ import annotations

import functools
import json
import re
import threading
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tvm_ffi
import xgrammar as xgr
from numpy.typing import NDArray
from pydantic import ValidationError

from weft import _core, registry
from weft.errors import GuideError, InterfaceError, TokenizerError
from weft.grammar import json_schema
from weft.grammar.base import NO_REQUEST, CompiledGuide, Matcher, Opening, wrap_matcher
from weft.grammar.guide import Guide, GuideWarning
from weft.grammar.limits import CompileLimits, check_costs
from weft.grammar.tokenizer import Vocabulary, token_texts
from weft.grammar.trial import Trial
from weft.grammar.xgrammar_rules import byte_rules

NEEDED = "xgrammar 0.2.x on apache-tvm-ffi 0.1.x"
MAX_ERROR = 500
T = TypeVar("T")


def parse_regex(pattern: str) -> xgr.Grammar:
    """Raises `GuideError` for a regular expression that XGrammar does not take."""
    return _translated("regex", lambda: xgr.Grammar.from_regex(pattern))


def parse_ebnf(grammar: str) -> xgr.Grammar:
    """Raises `GuideError` for a grammar with a syntax error or without a root."""
    return _translated("EBNF", lambda: xgr.Grammar.from_ebnf(grammar))


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
    return _translated("structural tag", lambda: xgr.Grammar.from_structural_tag(tag))


def parse_json_schema(schema: str, max_whitespace: int | None, any_order: bool = False) -> xgr.Grammar:
    """Raises `GuideError` for a schema that XGrammar can't express."""
    opened = json.dumps(opened_schema(json.loads(schema)))
    return _translated(
        "JSON schema",
        lambda: xgr.Grammar.from_json_schema(opened, max_whitespace_cnt=max_whitespace, any_order=any_order),
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
        return parse_json_schema(guide.source, guide.max_whitespace, guide.any_order)
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


def _translated(what: str, call: Callable[[], T]) -> T:
    """Runs `call`; XGrammar's errors become `GuideError`, without the place in its sources."""
    try:
        return call()
    except (RuntimeError, ValueError, TypeError) as error:
        text = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(error)).strip()
        if len(text) > MAX_ERROR:
            text = f"{text[:MAX_ERROR]}..."  # XGrammar's texts may hold all that it was given
        raise GuideError(f"{what}: {text}") from None  # the text says all


class XGrammarMatcher:
    """The matcher interface for Python, over XGrammar's own: what native matchers are compared with."""

    def __init__(self, matcher: xgr.GrammarMatcher, end_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._end_ids = end_ids

    def accept(self, token: int) -> bool:
        return not self._matcher.is_terminated() and bool(self._matcher.accept_token(token))

    def fill(self, row: NDArray[np.int32]) -> bool:
        if not self._matcher.is_terminated():
            return bool(self._matcher.fill_next_token_bitmask(row))
        words = row.view(np.uint32)
        for token in self._end_ids:
            words[token // 32] |= np.uint32(1 << (token % 32))
        return True

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)

    def is_terminated(self) -> bool:
        return bool(self._matcher.is_terminated())

    def fork(self) -> XGrammarMatcher:
        return XGrammarMatcher(self._matcher.fork(), self._end_ids)

    def reset(self) -> None:
        self._matcher.reset()


def native_matcher(matcher: xgr.GrammarMatcher, vocabulary: Vocabulary) -> Matcher:
    """A native handle on a matcher; needs `native_is_usable`."""
    return _core.xgrammar_matcher(
        matcher._handle.__chandle__(),
        vocabulary.vocab_size,
        list(vocabulary.end_ids),
        token_texts(vocabulary),
    )


@functools.cache
def native_is_usable() -> bool:
    """Whether the installed wheels can be called natively; tried once. Warns if not."""
    problem = _bind() or _self_test()
    if problem:
        warnings.warn(
            f"XGrammar is called through Python, slower and with the GIL: {problem}. Natively weft calls "
            f"{NEEDED}; installed are {version('xgrammar')} and {version('apache-tvm-ffi')}.",
            RuntimeWarning,
            stacklevel=2,
        )
    return not problem


def _bind() -> str:
    ffi = Path(tvm_ffi.libinfo.find_libtvm_ffi())
    bindings = Path(xgr.__file__).parent / "libxgrammar_bindings.so"
    problem: str = _core.xgrammar_bind(str(ffi), str(bindings))
    return problem


def _self_test() -> str:
    """Walks a tiny grammar natively and through Python; what differs, or nothing."""
    vocabulary = Vocabulary.from_tokens([b"", b"a", b"b", b"ab", b"c"], end_ids=[0], vocab_size=40)
    info = tokenizer_info(vocabulary)
    compiled = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False).compile_regex("ca(b|c)*")
    theirs = XGrammarMatcher(xgr.GrammarMatcher(compiled), vocabulary.end_ids)
    ours = native_matcher(xgr.GrammarMatcher(compiled), vocabulary)
    rows = np.zeros((2, 2), dtype=np.int32)
    try:
        # "ca" must come, and "ab" may stand where "a" does.
        if ours.forced(4) != [4]:
            return "its native find_jump_forward_string does not do what Python's does"
        for action, number in [("accept", 4), ("accept", 4), ("accept", 1), ("accept", 0), ("rollback", 2)]:
            rows[:] = 0
            theirs.fill(rows[0])
            ours.fill(rows[1])
            outcomes = [getattr(matcher, action)(number) for matcher in (theirs, ours)]
            if outcomes[0] != outcomes[1] or not np.array_equal(rows[0], rows[1]):
                return f"its native {action} does not do what Python's does"
            if theirs.is_terminated() != ours.is_terminated():
                return "its native is_terminated does not say what Python's does"
    except Exception as error:
        return f"a native call failed ({error})"
    return ""


@functools.lru_cache(maxsize=4)
def _tokenizer_info(fingerprint: str, vocabulary: Vocabulary) -> xgr.TokenizerInfo:
    return _translated(
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


class CompiledXGrammar:
    """A guide's grammar compiled for a vocabulary."""

    backend = "xgrammar"

    def __init__(
        self, guide: Guide, compiled: xgr.CompiledGrammar, vocabulary: Vocabulary, native: bool
    ) -> None:
        self.guide = guide
        self.compiled = compiled
        self.vocabulary = vocabulary
        self._native = native
        self._closing: _core.ClosingTables | None = None
        self._closing_lock = threading.Lock()

    @property
    def vocab_size(self) -> int:
        return self.vocabulary.vocab_size

    @property
    def memory_bytes(self) -> int:
        closing = 0 if self._closing is None else self._closing.num_bytes
        return int(self.compiled.memory_size_bytes) + closing

    def closing(self) -> _core.ClosingTables:
        """What ends an answer soonest (`weft.grammar.closing`). Raises `GuideError` or `ValueError` for a grammar
        that is too much for that.
        """
        with self._closing_lock:
            if self._closing is None:
                vocabulary = self.vocabulary
                rules = byte_rules(self._grammar().serialize_json())
                self._closing = _core.ClosingTables(
                    rules, token_texts(vocabulary), vocabulary.vocab_size, list(vocabulary.end_ids)
                )
            return self._closing

    def _grammar(self) -> xgr.Grammar:
        # A compiled grammar would be written with its automata, which grow with the square of its size.
        return parse_ebnf(str(self)) if self.guide.kind == "compiled" else grammar_of(self.guide)

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A new matcher at the start of the guide."""
        matcher = xgr.GrammarMatcher(self.compiled)
        if self._native:
            return native_matcher(matcher, self.vocabulary)
        return wrap_matcher(XGrammarMatcher(matcher, self.vocabulary.end_ids))

    def __str__(self) -> str:
        return str(self.compiled.grammar)


class XGrammarBackend:
    """Compiles guides with XGrammar for one vocabulary.

    `cache_limit_bytes` bounds XGrammar's own cache of parts of grammars; `threads` is what one compile uses.
    `native` says how matchers are called: without Python where that is possible (None), only so (True, else
    `InterfaceError`), or through Python (False). Guides that would take long are refused by `limits`; `untrusted`
    guides are compiled in another process before (`trial.py`).
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        threads: int = 2,
        cache_limit_bytes: int = 256 << 20,
        native: bool | None = None,
        limits: CompileLimits | None = None,
        untrusted: bool = False,
    ) -> None:
        self.vocabulary = vocabulary
        self._limits = limits or CompileLimits()
        self._trial = Trial(vocabulary) if untrusted else None
        self._info = tokenizer_info(vocabulary)
        self._threads = threads
        self._native = native is not False and native_is_usable()
        if native and not self._native:
            raise InterfaceError(f"XGrammar can't be called natively here; weft needs {NEEDED} for that")
        self._compiler = xgr.GrammarCompiler(
            self._info, max_threads=threads, cache_enabled=True, cache_limit_bytes=cache_limit_bytes
        )

    def prepare(self) -> None:
        """Wait for the process that tries guides."""
        if self._trial is not None:
            self._trial.wait()

    def close(self) -> None:
        """End the process that tries guides."""
        if self._trial is not None:
            self._trial.close()

    def compile(self, guide: Guide) -> CompiledGuide:
        """Compile a guide. Raises `GuideError` where that fails, or where no token may ever be the first."""
        report_ignored(guide)
        check_costs(guide, self._limits)
        if self._trial is not None and guide.payload is None:
            self._trial.run(guide, self._limits)
        if guide.kind == "compiled":
            self._check_vocabulary(guide.payload)
            compiled = guide.payload
        else:
            grammar = grammar_of(guide)
            compiled = _translated("guide", lambda: self._compile(grammar))
        result = CompiledXGrammar(guide, compiled, self.vocabulary, self._native)
        row = np.zeros(-(-self.vocabulary.vocab_size // 32), dtype=np.int32)
        result.matcher().fill(row)
        if not row.any():
            raise GuideError("the guide can't be met: no token of this vocabulary may begin it")
        return result

    def _compile(self, grammar: xgr.Grammar) -> xgr.CompiledGrammar:
        try:
            return self._compiler.compile_grammar(grammar)
        except RuntimeError as error:
            # XGrammar's cache can't hold some repetitions of more than about 128; a compiler without one can.
            if "per_rule_fsm_hashes" not in str(error):
                raise
            return xgr.GrammarCompiler(
                self._info, max_threads=self._threads, cache_enabled=False
            ).compile_grammar(grammar)

    def _check_vocabulary(self, compiled: xgr.CompiledGrammar) -> None:
        size = compiled.tokenizer_info.vocab_size
        if size != self.vocabulary.vocab_size:
            raise TokenizerError(
                f"the CompiledGrammar is for {size} tokens, the model has {self.vocabulary.vocab_size}"
            )

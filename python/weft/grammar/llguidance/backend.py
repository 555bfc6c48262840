"""The LLGuidance backend: compiles guides to LLGuidance grammars, whose matchers run without Python.

The native calls use the C interface that the library in the wheel exports (`csrc/grammar/llguidance/matcher.h`). On
first use a self-test walks a tiny grammar natively and through Python. If the results differ, or the interface is
missing, the backend is unavailable, and its error has the reason.
"""

from __future__ import annotations

import atexit
import functools
import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import llguidance
import numpy as np
from numpy.typing import NDArray

from weft import _core
from weft.errors import GuideError, GuideStateError, InterfaceError
from weft.grammar.base import NO_REQUEST, Matcher, Opening, Prepared
from weft.grammar.guide import Guide, words
from weft.grammar.limits import CompileLimits
from weft.grammar.llguidance import lark, orders
from weft.grammar.llguidance import schema as llguidance_schema
from weft.grammar.notes import Findings, Notes, refuse
from weft.grammar.schema.rewrite import Rewritten, in_some_orders, rewritten
from weft.grammar.schema.structure import misspelled
from weft.grammar.vocabulary.tokenizer import Vocabulary, token_texts

NEEDED = "llguidance 1.9.x"

FUEL_PER_S = 50_000_000  # lexer fuel (LLGuidance's unit of work) that takes about a second
BYTES_PER_STATE = 2048
BYTES_OF_A_GRAMMAR, BYTES_PER_LETTER = 200_000, 72


def parser_limits(limits: CompileLimits | None = None, untrusted: bool = False) -> _core.LlguidanceLimits:
    """LLGuidance's limits. The lexer fuel lasts about 20 ms for a compile and 14 ms for a mask. The Earley items of a
    mask last about 3 ms, and the lexer states take about 100 MB. Lower `limits` tighten them. An `untrusted` grammar
    keeps no lexer states for later matchers."""
    limits = limits or CompileLimits()
    return _core.LlguidanceLimits(
        max_items_in_row=2000,
        step_max_items=50_000,
        max_lexer_states=max(1, min(50_000, limits.memory_bytes // BYTES_PER_STATE)),
        max_grammar_size=500_000,
        initial_lexer_fuel=max(1, min(1_000_000, int(limits.time_s * FUEL_PER_S))),
        step_lexer_fuel=200_000,
        keeps_states=not untrusted,
    )


def translated(
    guide: Guide,
    special_names: Mapping[str, int] | None = None,
    coerce_one_of: bool = False,
    all_orders: bool = True,
) -> tuple[str, str]:
    """Translate a guide for LLGuidance. Returns the type and the text of the grammar. Raises `GuideError` for a guide
    that LLGuidance can't express.

    `special_names` maps the tokenizer's special tokens to their ids; a Lark grammar may name them. With
    `coerce_one_of`, a schema's `oneOf` means `anyOf`. With `all_orders`, a schema with more property orders than
    can be written out is translated to Lark, if possible.
    """
    if guide.kind == "json_schema":
        if guide.any_order:
            raise GuideError("LLGuidance keeps the schema's order of properties; any_order needs XGrammar")
        rewritten_schema = rewritten(guide)
        if rewritten_schema.lacks_orders and all_orders and not coerce_one_of:
            grammar = orders.in_any_order(_schema(guide, rewritten_schema))
            if grammar is not None:
                return "lark", grammar
        return "json_schema", _schema(guide, in_some_orders(guide), coerce_one_of)
    if guide.kind == "regex":
        # As in XGrammar, classes are those of JavaScript, and a dot matches line breaks. The flag is a prefix and not a
        # group around the pattern, because the pattern could close that group.
        return "regex", f"(?s){llguidance.regex_to_lark(guide.source, 'dw')}"
    if guide.kind == "choice":
        return "regex", "|".join(lark.literal(choice) for choice in json.loads(guide.source))
    if guide.kind == "ebnf":
        from weft.grammar.xgrammar.translate import parse_ebnf

        parse_ebnf(
            guide.source
        )  # for its errors, which refer to the user's EBNF; LLGuidance's would refer to the translation
        return "lark", lark.to_lark(guide.source)
    if guide.kind == "lark":
        return "lark", lark.with_numbers(guide.source, special_names or {})
    raise GuideError(f"LLGuidance has no {guide.kind.replace('_', ' ')}; use XGrammar for it")


def _schema(guide: Guide, rewritten_schema: Rewritten, coerce_one_of: bool = False) -> str:
    is_open = rewritten_schema.is_open(guide.open_objects)
    return llguidance_schema.prepared(
        rewritten_schema.schema, guide.max_whitespace, guide.separators, is_open, coerce_one_of
    )


def not_enforced(guide: Guide) -> Findings:
    """The keywords that LLGuidance does not enforce in a guide, with their places."""
    if guide.kind != "json_schema":
        return ()
    rewritten_schema = rewritten(guide)
    is_open = rewritten_schema.is_open(guide.open_objects)
    ignored = llguidance_schema.not_enforced(rewritten_schema.schema, is_open, rewritten_schema.places)
    return chain(misspelled(json.loads(guide.source)), ignored)


@functools.cache
def check_interface() -> None:
    """Raise `InterfaceError` if the installed wheel can't be called natively. The self-test runs once."""
    library = Path(llguidance.__file__).parent / "_lib.abi3.so"
    problem = _core.llguidance_bind(str(library)) or _self_test()
    if problem:
        raise InterfaceError(
            f"LLGuidance can't be called natively: {problem}. weft needs {NEEDED}; installed is {version('llguidance')}"
        )


class TokenizerOf:
    """Adapts a vocabulary to the tokenizer interface of LLGuidance's Python package."""

    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.eos_token_id = vocabulary.end_ids[0]

    def __call__(self, text: bytes) -> list[int]:
        return []  # weft never lets LLGuidance tokenize text


def python_matcher(vocabulary: Vocabulary, kind: str, text: str) -> llguidance.LLMatcher:
    """LLGuidance's Python matcher for a result of `translated`: the reference for native matchers."""
    tokenizer = llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(TokenizerOf(vocabulary)), eos_token=list(vocabulary.end_ids)
    )
    start = {
        "json_schema": f"start: %json {text}",
        "regex": "start: /" + text.replace("/", r"\x{2f}") + "/",
        "lark": text,
    }
    # LLGuidance assumes that a Python tokenizer is canonical. With forcing it would allow only one tokenization of
    # forced text.
    grammar = '%llguidance {"no_forcing": true}\n' + start[kind]
    return llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)


def _self_test() -> str:
    """Walk a tiny grammar natively and through Python. Returns a description of the first difference, or ""."""
    vocabulary = Vocabulary.from_tokens([b"", b"a", b"b", b"ab", b"c", b""], end_ids=[0, 5], vocab_size=40)
    pattern = "ca(b|c)*"
    reference = python_matcher(vocabulary, "regex", pattern)
    try:
        native = _core.LlguidanceGrammar(_view(vocabulary), "regex", pattern, parser_limits()).matcher()
        rows = np.zeros((2, 2), dtype=np.int32)
        # The text begins with "ca". Only the token "c" is forced, because "a" may become the token "ab".
        if native.forced(4) != [4]:
            return "its forced text is not what its masks say"
        for token, is_accepted in [(4, True), (4, False), (1, True), (2, True)]:
            native.fill(rows[0])
            rows[1] = np.frombuffer(reference.compute_bitmask(), dtype=np.int32)
            if not np.array_equal(rows[0], rows[1]):
                return "its native mask is not Python's"
            if native.accept(token) != is_accepted or (is_accepted and not reference.consume_token(token)):
                return "its native accept does not do what Python's does"
        if not (reference.is_accepting() and native.accept(5) and native.is_terminated()):
            return "it does not end where its grammar does"
        native.rollback(2)
        reference.rollback(1)
        native.fill(rows[0])
        if not np.array_equal(rows[0], np.frombuffer(reference.compute_bitmask(), dtype=np.int32)):
            return "its native rollback does not do what Python's does"
    except Exception as error:
        return f"a native call failed ({error})"
    return ""


@functools.lru_cache(maxsize=4)
def _view(vocabulary: Vocabulary) -> _core.LlguidanceVocabulary:
    return _core.LlguidanceVocabulary(vocabulary.tokens, list(vocabulary.end_ids), token_texts(vocabulary))


atexit.register(_view.cache_clear)  # native objects must go before the interpreter drops their types


class CompiledLlguidance:
    """A guide compiled by LLGuidance for one vocabulary."""

    backend = "llguidance"

    def __init__(
        self,
        guide: Guide,
        grammar: _core.LlguidanceGrammar,
        vocabulary: Vocabulary,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.guide = guide
        self.notes = notes
        self.vocabulary = vocabulary
        self._grammar = grammar

    @property
    def vocab_size(self) -> int:
        """Bits of a mask row."""
        return self.vocabulary.vocab_size

    @property
    def memory_bytes(self) -> int:
        """An estimate, because LLGuidance reports no size. In measurements a grammar takes about 200 kB plus 30
        (schemas) to 72 (grammars with many rules) times its source. Lexer states kept for later matchers are not
        counted."""
        return BYTES_OF_A_GRAMMAR + BYTES_PER_LETTER * len(self.guide.source)

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A new matcher at the start of the guide."""
        return self._grammar.matcher()


class LLGuidanceBackend:
    """Compiles guides with LLGuidance for one vocabulary.

    LLGuidance itself enforces limits on the cost of a compile and of a mask, and `limits` tighten them. Its use of the
    native stack is not limited. It starts no threads. Raises `InterfaceError` if the installed wheel can't be called
    natively.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        limits: CompileLimits | None = None,
        untrusted: bool = False,
        threads: int | None = None,
    ) -> None:
        check_interface()
        self.vocabulary = vocabulary
        self._limits = parser_limits(limits, untrusted)
        self._view = _view(vocabulary)

    def compile(self, guide: Guide) -> CompiledLlguidance:
        """Compile a guide. Raises `GuideError` if that fails, or if the first mask would be empty."""
        return self.build(guide, self.prepare(guide))

    def prepare(self, guide: Guide) -> Prepared:
        """Translate a guide for LLGuidance. Raises `GuideError`."""
        notes = Notes.of(not_enforced(guide))
        if guide.strict:
            refuse(words(guide), "LLGuidance", notes)
        kind, text = self._translated(guide)
        if kind == "json_schema" and '"oneOf"' in text and self._refuses_one_of(guide, text):
            schema = rewritten(guide)
            more = Notes.of(llguidance_schema.overlapping(schema.schema, schema.places))
            if guide.strict:
                refuse(words(guide), "LLGuidance", more)
            kind, text = self._translated(guide, coerce_one_of=True)
            notes = notes + more
        return Prepared(kind, text, notes.texts())

    def build(self, guide: Guide, prepared: Prepared) -> CompiledLlguidance:
        """Compile a prepared text. Raises `GuideError`."""
        try:
            grammar = self._grammar(guide, prepared.kind, prepared.text)
        except GuideError:
            if guide.kind != "json_schema" or prepared.kind != "lark":
                raise
            # Lark can't express a part that nothing matches, and it reaches some limits sooner. So fall back to a JSON
            # schema with fewer orders of properties.
            grammar = self._grammar(guide, *self._translated(guide, all_orders=False))
        compiled = CompiledLlguidance(guide, grammar, self.vocabulary, prepared.notes)
        self._try(compiled)
        return compiled

    def _translated(
        self, guide: Guide, coerce_one_of: bool = False, all_orders: bool = True
    ) -> tuple[str, str]:
        kind, text = translated(guide, self.vocabulary.special_names, coerce_one_of, all_orders)
        if "\0" in text:
            raise GuideError(f"{guide.kind}: LLGuidance can't take a NUL character; spell it \\x00")
        return kind, text

    def _refuses_one_of(self, guide: Guide, text: str) -> bool:
        """Whether LLGuidance refuses a `oneOf` because it can't prove its branches disjoint. Only a compile shows
        it."""
        try:
            self._grammar(guide, "json_schema", text)
        except GuideError as error:
            return "oneOf constraints are not supported" in str(error)
        return False

    def _grammar(self, guide: Guide, kind: str, text: str) -> _core.LlguidanceGrammar:
        try:
            return _core.LlguidanceGrammar(self._view, kind, text, self._limits)
        except GuideError as error:
            reason = in_a_line(str(error), is_translated=guide.kind != "lark")
            raise GuideError(f"{words(guide)}: {reason}") from None

    def _try(self, compiled: CompiledLlguidance) -> None:
        """Check that the first mask allows a token, and that the token can be accepted and rolled back."""
        matcher = compiled.matcher()
        row: NDArray[np.int32] = np.zeros(-(-self.vocabulary.vocab_size // 32), dtype=np.int32)
        try:
            matcher.fill(row)
            bits = np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0]
            if len(bits) and matcher.accept(int(bits[0])):
                matcher.rollback(1)
        except GuideStateError as error:
            reason = str(error).partition("\n")[0]
            if "NoExtensionBias" in reason:
                raise GuideError("the guide can't be met: no token of this vocabulary may begin it") from None
            raise GuideError(f"{words(compiled.guide)}: {reason}") from None
        if not len(bits):
            raise GuideError("the guide can't be met: no token of this vocabulary may begin it")


PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ?")
REGEX = re.compile(r"regex parse error:.*?\nerror: ([^\n]+)", re.DOTALL)


def in_a_line(text: str, *, is_translated: bool) -> str:
    """Shorten an error of LLGuidance to one line: the position and the reason, without the source excerpt. If the
    grammar `is_translated`, the position is dropped, because the user never saw that text."""
    lines = text.replace("\\n", "\n")  # errors of weft escape line breaks
    place = PLACE.match(lines)
    of_regex = REGEX.search(lines)
    if place is None and of_regex is None:
        return text
    fault = of_regex[1].strip() if of_regex else PLACE.sub("", lines).partition("\n")[0].strip()
    if place is None or is_translated:
        return fault
    kind = "invalid regex: " if of_regex else ""
    return f"line {place[1]}, column {place[2]}: {kind}{fault}"

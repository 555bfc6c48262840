"""LLGuidance: guides to grammars, and matchers that run without Python.

The wheel's library is called natively, through the C interface that it exports (`csrc/grammar/llguidance/matcher.h`).
At first use a tiny grammar is walked both ways; where the two differ, or the interface is not there, the backend
is not available, and says why.
"""

from __future__ import annotations

import atexit
import functools
import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
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
from weft.grammar.notes import Found, Notes, refuse
from weft.grammar.schema.rewrite import Rewritten, in_some_orders, rewritten
from weft.grammar.vocabulary.tokenizer import Vocabulary, token_texts

NEEDED = "llguidance 1.9.x"

FUEL_PER_S = 50_000_000  # of building a lexer, by LLGuidance's own account
BYTES_PER_STATE = 2048
BYTES_OF_A_GRAMMAR, BYTES_PER_LETTER = 200_000, 72


def parser_limits(limits: CompileLimits | None = None, untrusted: bool = False) -> _core.LlguidanceLimits:
    """What one compile and one mask may cost: lexer fuel of about 20 ms and 14 ms, Earley items of about 3 ms, lexer
    states of about 100 MB; less where `limits` say so. An `untrusted` grammar keeps no states for later matchers.
    """
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
    """The guide as LLGuidance takes it: type and text. Raises `GuideError` for what has no counterpart.

    `special_names` are those of the tokenizer, which a grammar in Lark may name. With `coerce_one_of`, a schema's
    `oneOf` is an `anyOf`. Open objects that have too many orders to be written out are put in Lark with `all_orders`.
    """
    if guide.kind == "json_schema":
        if guide.any_order:
            raise GuideError("LLGuidance keeps the schema's order of properties; any_order needs XGrammar")
        found = rewritten(guide)
        if found.lacks_orders and all_orders and not coerce_one_of:
            grammar = orders.in_any_order(_schema(guide, found))
            if grammar is not None:
                return "lark", grammar
        return "json_schema", _schema(guide, in_some_orders(guide), coerce_one_of)
    if guide.kind == "regex":
        # Classes as in JavaScript, and a dot that takes line breaks, too: what they mean to XGrammar.
        # The flag stands in front: a group around the pattern could be closed by it.
        return "regex", f"(?s){llguidance.regex_to_lark(guide.source, 'dw')}"
    if guide.kind == "choice":
        return "regex", "|".join(lark.literal(choice) for choice in json.loads(guide.source))
    if guide.kind == "ebnf":
        from weft.grammar.xgrammar.translate import parse_ebnf

        parse_ebnf(guide.source)  # what is wrong with it, in the words that one knows
        return "lark", lark.to_lark(guide.source)
    if guide.kind == "lark":
        return "lark", lark.with_numbers(guide.source, special_names or {})
    raise GuideError(f"LLGuidance has no {guide.kind.replace('_', ' ')}; use XGrammar for it")


def _schema(guide: Guide, found: Rewritten, coerce_one_of: bool = False) -> str:
    is_open = guide.open_objects or not found.reason  # what is rewritten says itself where it is closed
    return llguidance_schema.prepared(
        found.schema, guide.max_whitespace, guide.separators, is_open, coerce_one_of
    )


def not_enforced(guide: Guide) -> Found:
    """What LLGuidance does not enforce of a guide, and where."""
    if guide.kind != "json_schema":
        return ()
    found = rewritten(guide)
    is_open = guide.open_objects or not found.reason
    return llguidance_schema.not_enforced(found.schema, is_open, found.places)


@functools.cache
def check_interface() -> None:
    """Raises `InterfaceError` where the installed wheel can't be called natively; tried once."""
    library = Path(llguidance.__file__).parent / "_lib.abi3.so"
    problem = _core.llguidance_bind(str(library)) or _self_test()
    if problem:
        raise InterfaceError(
            f"LLGuidance can't be called natively: {problem}. weft needs {NEEDED}; installed is {version('llguidance')}"
        )


class TokenizerOf:
    """A vocabulary as LLGuidance's Python sees a tokenizer."""

    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.eos_token_id = vocabulary.end_ids[0]

    def __call__(self, text: bytes) -> list[int]:
        return []  # LLGuidance spells nothing for weft


def python_matcher(vocabulary: Vocabulary, kind: str, text: str) -> llguidance.LLMatcher:
    """LLGuidance's own matcher for what `translated` gave: what native matchers are compared with."""
    tokenizer = llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(TokenizerOf(vocabulary)), eos_token=list(vocabulary.end_ids)
    )
    start = {
        "json_schema": f"start: %json {text}",
        "regex": "start: /" + text.replace("/", r"\x{2f}") + "/",
        "lark": text,
    }
    # Python's tokenizers count as canonical; without this, forced text would have one spelling only.
    grammar = '%llguidance {"no_forcing": true}\n' + start[kind]
    return llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)


def _self_test() -> str:
    """Walks a tiny grammar natively and through Python; what differs, or nothing."""
    vocabulary = Vocabulary.from_tokens([b"", b"a", b"b", b"ab", b"c", b""], end_ids=[0, 5], vocab_size=40)
    pattern = "ca(b|c)*"
    theirs = python_matcher(vocabulary, "regex", pattern)
    try:
        ours = _core.LlguidanceGrammar(_view(vocabulary), "regex", pattern, parser_limits()).matcher()
        rows = np.zeros((2, 2), dtype=np.int32)
        # "ca" must come, and "ab" may stand where "a" does.
        if ours.forced(4) != [4]:
            return "its forced text is not what its masks say"
        for token, taken in [(4, True), (4, False), (1, True), (2, True)]:
            ours.fill(rows[0])
            rows[1] = np.frombuffer(theirs.compute_bitmask(), dtype=np.int32)
            if not np.array_equal(rows[0], rows[1]):
                return "its native mask is not Python's"
            if ours.accept(token) != taken or (taken and not theirs.consume_token(token)):
                return "its native accept does not do what Python's does"
        if not (theirs.is_accepting() and ours.accept(5) and ours.is_terminated()):
            return "it does not end where its grammar does"
        ours.rollback(2)
        theirs.rollback(1)
        ours.fill(rows[0])
        if not np.array_equal(rows[0], np.frombuffer(theirs.compute_bitmask(), dtype=np.int32)):
            return "its native rollback does not do what Python's does"
    except Exception as error:
        return f"a native call failed ({error})"
    return ""


def _view(vocabulary: Vocabulary) -> _core.LlguidanceVocabulary:
    return _core.LlguidanceVocabulary(vocabulary.tokens, list(vocabulary.end_ids), token_texts(vocabulary))


@functools.lru_cache(maxsize=4)
def _cached_view(fingerprint: str, vocabulary: Vocabulary) -> _core.LlguidanceVocabulary:
    return _view(vocabulary)


atexit.register(_cached_view.cache_clear)  # native objects go before their types do


class CompiledLlguidance:
    """A guide's grammar compiled for a vocabulary."""

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
        """LLGuidance does not say; measured, it is about 200 kB and 30 (schemas) to 72 (grammars of many rules) times
        the source, without the lexer states that are kept for later matchers."""
        return BYTES_OF_A_GRAMMAR + BYTES_PER_LETTER * len(self.guide.source)

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A new matcher at the start of the guide."""
        return self._grammar.matcher()


class LLGuidanceBackend:
    """Compiles guides with LLGuidance for one vocabulary.

    What a compile and a mask may cost is bounded by LLGuidance itself, within `limits`; its native stack is not. It
    starts no threads. Raises `InterfaceError` where the installed wheel can't be called natively.
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
        self._view = _cached_view(vocabulary.fingerprint, vocabulary)

    def compile(self, guide: Guide) -> CompiledLlguidance:
        """Compile a guide. Raises `GuideError` where that fails, or where no token may ever be the first."""
        return self.build(guide, self.prepare(guide))

    def prepare(self, guide: Guide) -> Prepared:
        """The guide as LLGuidance takes it. Raises `GuideError`."""
        notes = Notes.of(not_enforced(guide))
        if guide.strict:
            refuse(words(guide), "LLGuidance", notes)
        kind, text = self._translated(guide)
        if kind == "json_schema" and '"oneOf"' in text and self._refuses_one_of(guide, text):
            found = rewritten(guide)
            more = Notes.of(llguidance_schema.overlapping(found.schema, found.places))
            if guide.strict:
                refuse(words(guide), "LLGuidance", more)
            kind, text = self._translated(guide, coerce_one_of=True)
            notes = notes + more
        return Prepared(kind, text, notes.told())

    def build(self, guide: Guide, prepared: Prepared) -> CompiledLlguidance:
        """Compile what was prepared. Raises `GuideError`."""
        try:
            grammar = self._grammar(guide, prepared.kind, prepared.text)
        except GuideError:
            if guide.kind != "json_schema" or prepared.kind != "lark":
                raise
            # Lark has no part that nothing satisfies, and some limits are met sooner; then with fewer orders.
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
        """Whether it can't tell the branches of a `oneOf` apart, which only its compiler says."""
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
        """Looks at the first mask: there must be one, and what it allows can be taken back."""
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
    """An error about a grammar. Of what `is_translated`, places are those of a text that nobody has seen."""
    lines = text.replace("\\n", "\n")  # as errors of weft escape them
    place = PLACE.match(lines)
    of_regex = REGEX.search(lines)
    if place is None and of_regex is None:
        return text
    what = of_regex[1].strip() if of_regex else PLACE.sub("", lines).partition("\n")[0].strip()
    if place is None or is_translated:
        return what
    kind = "invalid regex: " if of_regex else ""
    return f"line {place[1]}, column {place[2]}: {kind}{what}"

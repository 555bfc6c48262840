"""The XGrammar backend: compiles guides to XGrammar grammars, whose matchers run without Python.

The native calls use the C interface of XGrammar's own Python bindings (`csrc/grammar/xgrammar/matcher.h`). On first use
a self-test walks a tiny grammar natively and through Python. If the results differ, or the interface is missing,
matchers are called through Python instead: slower, with the GIL, and with a warning.
"""

from __future__ import annotations

import functools
import threading
import warnings
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import tvm_ffi
import xgrammar as xgr
from numpy.typing import NDArray

from weft import _core
from weft.errors import GuideError, InterfaceError, TokenizerError
from weft.grammar.base import NO_REQUEST, CompiledGuide, Matcher, Opening, Prepared, wrap_matcher
from weft.grammar.guide import Guide, words
from weft.grammar.limits import CompileLimits, check_costs
from weft.grammar.notes import Notes, refuse
from weft.grammar.tag_forms import ended_by
from weft.grammar.vocabulary.tokenizer import Vocabulary, token_texts
from weft.grammar.xgrammar.rules import byte_rules, check_least
from weft.grammar.xgrammar.translate import (
    not_enforced,
    not_enforced_in_strict_parts,
    parse_ebnf,
    serialised,
    tokenizer_info,
    translated,
)

THREADS = 2
GRAMMAR = "grammar"  # the only kind of prepared text: a grammar that XGrammar serialized


class CompiledXGrammar:
    """A guide compiled by XGrammar for one vocabulary."""

    backend = "xgrammar"
    library = "xgrammar"

    def __init__(
        self,
        guide: Guide,
        compiled: xgr.CompiledGrammar,
        vocabulary: Vocabulary,
        native: bool,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.guide = guide
        self.notes = notes
        self.compiled = compiled
        self.vocabulary = vocabulary
        self._native = native
        self._closing: _core.ClosingTables | None = None
        self._closing_lock = threading.Lock()

    @property
    def vocab_size(self) -> int:
        """Bits of a mask row."""
        return self.vocabulary.vocab_size

    @property
    def memory_bytes(self) -> int:
        """The bytes that XGrammar reports, and those of the tables of shortest endings, if they exist."""
        closing = 0 if self._closing is None else self._closing.num_bytes
        return int(self.compiled.memory_size_bytes) + closing

    def closing(self, text: str | None = None) -> _core.ClosingTables:
        """The tables of shortest endings (`weft.grammar.kinds.closing`), computed once. Raises `GuideError` for a
        grammar with parts that are not text, and `ValueError` for one that is too complex."""
        with self._closing_lock:
            if self._closing is None:
                vocabulary = self.vocabulary
                rules = byte_rules(text or self._serialised())
                self._closing = _core.ClosingTables(
                    rules, token_texts(vocabulary), vocabulary.vocab_size, list(vocabulary.end_ids)
                )
            return self._closing

    def _serialised(self) -> str:
        # Translate the guide again: serializing the compiled grammar would include its automata, whose size is
        # quadratic.
        if self.guide.kind == "compiled":
            return str(parse_ebnf(str(self)).serialize_json())
        return serialised(_ended_by(self.guide, self.vocabulary))

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A new matcher at the start of the guide."""
        matcher = xgr.GrammarMatcher(self.compiled)
        if self._native:
            return native_matcher(matcher, self.vocabulary)
        return wrap_matcher(XGrammarMatcher(matcher, self.vocabulary.end_ids))

    def dumped(self) -> str:
        """The compiled grammar in XGrammar's serialization."""
        return str(self.compiled.serialize_json())

    def __str__(self) -> str:
        return str(self.compiled.grammar)


def _ended_by(guide: Guide, vocabulary: Vocabulary) -> Guide:
    """A structural tag whose ends are not the names of the vocabulary's end tokens."""
    if guide.kind != "structural_tag":
        return guide
    ends = {name for name, token in vocabulary.special_names.items() if token in vocabulary.end_ids}
    return replace(guide, source=ended_by(guide.source, ends))


class XGrammarBackend:
    """Compiles guides with XGrammar for one vocabulary.

    One compile uses `threads` threads. `native` selects how matchers are called. None prefers native calls, True
    requires them (else `InterfaceError`), and False calls through Python. A guide that exceeds `limits` is refused
    before XGrammar compiles it.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        threads: int | None = None,
        native: bool | None = None,
        limits: CompileLimits | None = None,
        untrusted: bool = False,
    ) -> None:
        self.vocabulary = vocabulary
        self._limits = limits or CompileLimits()
        self._threads = threads or THREADS
        self._native = native is not False and native_is_usable()
        if native and not self._native:
            raise InterfaceError(f"XGrammar can't be called natively here; weft needs {NEEDED} for that")

    def compile(self, guide: Guide) -> CompiledGuide:
        """Compile a guide. Raises `GuideError` if that fails, or if the first mask would be empty. Raises
        `TokenizerError` for an `xgrammar.CompiledGrammar` of another vocabulary size."""
        if guide.kind == "compiled":
            self._check_vocabulary(guide.payload)
            return self._compiled(guide, guide.payload, ())
        return self.build(guide, self.prepare(guide))

    def prepare(self, guide: Guide) -> Prepared:
        """Translate a guide to a grammar in XGrammar's serialization. Raises `GuideError`."""
        check_costs(guide, self._limits)  # first, because it takes linear time and the rest may not
        notes = Notes.of(not_enforced(guide))
        refuse(
            words(guide), "XGrammar", notes if guide.strict else Notes.of(not_enforced_in_strict_parts(guide))
        )
        text = serialised(_ended_by(guide, self.vocabulary))
        check_least(text, self._limits)
        return Prepared(GRAMMAR, text, notes.texts())

    def build(self, guide: Guide, prepared: Prepared) -> CompiledGuide:
        """Compile a prepared grammar. Raises `GuideError`."""
        grammar = translated("guide", lambda: xgr.Grammar.deserialize_json(prepared.text))
        compiled = translated("guide", lambda: self._compile(grammar, self._vocabulary_of(guide)))
        return self._compiled(guide, compiled, prepared.notes)

    def _compiled(
        self, guide: Guide, compiled: xgr.CompiledGrammar, notes: tuple[str, ...]
    ) -> CompiledXGrammar:
        result = CompiledXGrammar(guide, compiled, self._vocabulary_of(guide), self._native, notes)
        row = np.zeros(-(-self.vocabulary.vocab_size // 32), dtype=np.int32)
        result.matcher().fill(row)
        if not row.any():
            raise GuideError("the guide can't be met: no token of this vocabulary may begin it")
        return result

    def restore(self, guide: Guide, text: str, notes: tuple[str, ...]) -> CompiledGuide:
        """Rebuild a guide from the text of `CompiledXGrammar.dumped`. Raises `GuideError`."""
        try:
            info = tokenizer_info(self._vocabulary_of(guide))
            compiled = xgr.CompiledGrammar.deserialize_json(text, info)
        except (RuntimeError, ValueError, TypeError) as error:
            raise GuideError(f"XGrammar can't read the compiled guide: {error}") from None
        return CompiledXGrammar(guide, compiled, self._vocabulary_of(guide), self._native, notes)

    def _vocabulary_of(self, guide: Guide) -> Vocabulary:
        """Structural tags may write the markers of the model's formats."""
        return self.vocabulary.with_markers if guide.kind == "structural_tag" else self.vocabulary

    def _compile(self, grammar: xgr.Grammar, vocabulary: Vocabulary) -> xgr.CompiledGrammar:
        # A compiler, and so a cache, for each grammar. The cache of XGrammar 0.2.8 mixes up the masks of similar rules
        # of different grammars, and so allows forbidden tokens. Within one grammar the cache is sound.
        try:
            return self._compiler(vocabulary, cache_enabled=True).compile_grammar(grammar)
        except RuntimeError as error:
            # XGrammar bug: with the cache it fails on some repetitions of more than about 128.
            if "per_rule_fsm_hashes" not in str(error):
                raise
            return self._compiler(vocabulary, cache_enabled=False).compile_grammar(grammar)

    def _compiler(self, vocabulary: Vocabulary, *, cache_enabled: bool) -> xgr.GrammarCompiler:
        info = tokenizer_info(vocabulary)
        return xgr.GrammarCompiler(info, max_threads=self._threads, cache_enabled=cache_enabled)

    def _check_vocabulary(self, compiled: xgr.CompiledGrammar) -> None:
        size = compiled.tokenizer_info.vocab_size
        if size != self.vocabulary.vocab_size:
            raise TokenizerError(
                f"the CompiledGrammar is for {size} tokens, the model has {self.vocabulary.vocab_size}"
            )


NEEDED = "xgrammar 0.2.x on apache-tvm-ffi 0.1.x"


class XGrammarMatcher:
    """Adapts XGrammar's Python matcher to `PythonMatcher`: the fallback, and the reference for native matchers."""

    def __init__(self, matcher: xgr.GrammarMatcher, end_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._end_ids = end_ids

    def accept(self, token: int) -> bool:
        """Advance by a token. Returns False, with the state unchanged, for a token that is not allowed. After an end
        token no token is allowed."""
        return not self._matcher.is_terminated() and bool(self._matcher.accept_token(token))

    def fill(self, row: NDArray[np.int32]) -> bool:
        """Set the bits of the allowed tokens in a zeroed row, int32 [words]. After an end token only end tokens are
        set. Returns False if all tokens are allowed."""
        if not self._matcher.is_terminated():
            return bool(self._matcher.fill_next_token_bitmask(row))
        words = row.view(np.uint32)
        for token in self._end_ids:
            words[token // 32] |= np.uint32(1 << (token % 32))
        return True

    def rollback(self, count: int) -> None:
        """Undo the last `count` tokens."""
        self._matcher.rollback(count)

    def is_terminated(self) -> bool:
        """Whether an end token was accepted."""
        return bool(self._matcher.is_terminated())

    def fork(self) -> XGrammarMatcher:
        """An independent matcher in the same state."""
        return XGrammarMatcher(self._matcher.fork(), self._end_ids)

    def reset(self) -> None:
        """Return to the start."""
        self._matcher.reset()


def native_matcher(matcher: xgr.GrammarMatcher, vocabulary: Vocabulary) -> Matcher:
    """Wrap XGrammar's matcher as a native one. Requires `native_is_usable()`."""
    return _core.xgrammar_matcher(
        matcher._handle.__chandle__(),
        vocabulary.vocab_size,
        list(vocabulary.end_ids),
        token_texts(vocabulary),
    )


@functools.cache
def native_is_usable() -> bool:
    """Whether the installed XGrammar can be called natively. The self-test runs once; it warns on failure."""
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
    """Walk a tiny grammar natively and through Python. Returns a description of the first difference, or ""."""
    vocabulary = Vocabulary.from_tokens([b"", b"a", b"b", b"ab", b"c"], end_ids=[0], vocab_size=40)
    info = tokenizer_info(vocabulary)
    compiled = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False).compile_regex("ca(b|c)*")
    reference = XGrammarMatcher(xgr.GrammarMatcher(compiled), vocabulary.end_ids)
    native = native_matcher(xgr.GrammarMatcher(compiled), vocabulary)
    rows = np.zeros((2, 2), dtype=np.int32)
    try:
        # The text begins with "ca". Only the token "c" is forced, because "a" may become the token "ab".
        if native.forced(4) != [4]:
            return "its native find_jump_forward_string does not do what Python's does"
        for action, number in [("accept", 4), ("accept", 4), ("accept", 1), ("accept", 0), ("rollback", 2)]:
            rows[:] = 0
            reference.fill(rows[0])
            native.fill(rows[1])
            outcomes = [getattr(matcher, action)(number) for matcher in (reference, native)]
            if outcomes[0] != outcomes[1] or not np.array_equal(rows[0], rows[1]):
                return f"its native {action} does not do what Python's does"
            if reference.is_terminated() != native.is_terminated():
                return "its native is_terminated does not say what Python's does"
    except Exception as error:
        return f"a native call failed ({error})"
    return ""

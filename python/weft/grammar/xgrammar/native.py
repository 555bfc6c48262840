"""XGrammar's matchers, called natively, through the C interface that its own bindings use
(`csrc/grammar/xgrammar/matcher.h`).

At first use a tiny grammar is walked both ways; where the two differ, or the interface is not there, matchers are
called through Python instead: slower, with the GIL, and a warning says so.
"""

from __future__ import annotations

import functools
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import tvm_ffi
import xgrammar as xgr
from numpy.typing import NDArray

from weft import _core
from weft.grammar.base import Matcher
from weft.grammar.vocabulary.tokenizer import Vocabulary, token_texts
from weft.grammar.xgrammar.translate import tokenizer_info

NEEDED = "xgrammar 0.2.x on apache-tvm-ffi 0.1.x"


class XGrammarMatcher:
    """The matcher interface for Python, over XGrammar's own: what native matchers are compared with."""

    def __init__(self, matcher: xgr.GrammarMatcher, end_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._end_ids = end_ids

    def accept(self, token: int) -> bool:
        """Take a token; False refuses it and leaves the state as it was. After an end token all are refused."""
        return not self._matcher.is_terminated() and bool(self._matcher.accept_token(token))

    def fill(self, row: NDArray[np.int32]) -> bool:
        """Set the bits of what may follow in a zeroed row, int32 [words]: end tokens after an end token. False where
        all may.
        """
        if not self._matcher.is_terminated():
            return bool(self._matcher.fill_next_token_bitmask(row))
        words = row.view(np.uint32)
        for token in self._end_ids:
            words[token // 32] |= np.uint32(1 << (token % 32))
        return True

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""
        self._matcher.rollback(count)

    def is_terminated(self) -> bool:
        """Whether an end token was taken."""
        return bool(self._matcher.is_terminated())

    def fork(self) -> XGrammarMatcher:
        """An independent matcher in the same state."""
        return XGrammarMatcher(self._matcher.fork(), self._end_ids)

    def reset(self) -> None:
        """Back to the start."""
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

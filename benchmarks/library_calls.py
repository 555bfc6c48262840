"""Calls grammar libraries as their documentation shows, for comparison with weft's native matchers.

The classes move one matcher, or a batch of them, along the same tokens as weft: fill the mask, accept the token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import llguidance
import llguidance.numpy
import numpy as np
import xgrammar as xgr
from numpy.typing import NDArray

from weft.grammar import CompiledGuide, Guide, Vocabulary
from weft.grammar.llguidance.backend import TokenizerOf, translated
from weft.grammar.xgrammar.backend import CompiledXGrammar

Walk = Callable[[], object]
Step = Callable[[Sequence[int]], object]


@dataclass(frozen=True)
class Place:
    """The start of a row of a batch: its guide, and the tokens that its matcher accepts first."""

    compiled: CompiledGuide
    taken: Sequence[int]


class OwnCalls(Protocol):
    """The ways to call a library, by name."""

    def walks(self, compiled: CompiledGuide, tokens: Sequence[int]) -> dict[str, Walk]:
        """Return ways to move one matcher from its start along the tokens."""

    def steps(self, places: Sequence[Place]) -> dict[str, Step]:
        """Return ways to make one step of a batch: accept a token in each matcher, and fill all masks. The matchers
        are new."""


class XGrammarCalls:
    """Calls each `GrammarMatcher` in turn, or a `BatchGrammarMatcher`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocab_size = vocabulary.vocab_size

    def _new(self, place: Place) -> xgr.GrammarMatcher:
        assert isinstance(place.compiled, CompiledXGrammar)
        matcher = xgr.GrammarMatcher(place.compiled.compiled)
        for token in place.taken:
            assert matcher.accept_token(token)
        return matcher

    def walks(self, compiled: CompiledGuide, tokens: Sequence[int]) -> dict[str, Walk]:
        """Return ways to move one matcher from its start along the tokens."""
        matcher = self._new(Place(compiled, ()))
        bitmask = xgr.allocate_token_bitmask(1, self._vocab_size)

        def walk() -> None:
            matcher.reset()
            for token in tokens:
                matcher.fill_next_token_bitmask(bitmask)
                assert matcher.accept_token(token)

        return {"GrammarMatcher": walk}

    def steps(self, places: Sequence[Place]) -> dict[str, Step]:
        """Return ways to make one step of a batch: accept a token in each matcher, and fill all masks. The matchers
        are new."""
        bitmask = xgr.allocate_token_bitmask(len(places), self._vocab_size)

        def new() -> list[xgr.GrammarMatcher]:
            return [self._new(place) for place in places]

        def loop(matchers: list[xgr.GrammarMatcher]) -> Step:
            def step(tokens: Sequence[int]) -> None:
                for row, (matcher, token) in enumerate(zip(matchers, tokens, strict=True)):
                    matcher.accept_token(token)
                    matcher.fill_next_token_bitmask(bitmask, row)

            return step

        def batched(matchers: list[xgr.GrammarMatcher], batch: xgr.BatchGrammarMatcher) -> Step:
            def step(tokens: Sequence[int]) -> None:
                xgr.BatchGrammarMatcher.batch_accept_token(matchers, tokens)
                batch.batch_fill_next_token_bitmask(matchers, bitmask)

            return step

        return {
            "GrammarMatcher, one by one": loop(new()),
            "BatchGrammarMatcher": batched(new(), xgr.BatchGrammarMatcher()),
            "BatchGrammarMatcher, 1 thread": batched(new(), xgr.BatchGrammarMatcher(1)),
        }


class LLGuidanceCalls:
    """Calls each `LLMatcher` in turn, with a raw pointer or with the wrapper for numpy, or an `LLExecutor`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._words = -(-vocabulary.vocab_size // 32)
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(TokenizerOf(vocabulary)), eos_token=list(vocabulary.end_ids)
        )
        self._made: dict[Guide, llguidance.LLMatcher] = {}
        self._bitmask: NDArray[np.int32] | None = None

    def _new(self, place: Place) -> llguidance.LLMatcher:
        """Copy a matcher that never moves, as a server does after it has compiled the guide."""
        guide = place.compiled.guide
        if guide not in self._made:
            kind, text = translated(guide)
            source = f"start: %json {text}" if kind == "json_schema" else text
            grammar = llguidance.LLMatcher.grammar_from_lark('%llguidance {"no_forcing": true}\n' + source)
            self._made[guide] = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        matcher = self._made[guide].deep_copy()
        assert matcher.consume_tokens(list(place.taken))
        return matcher

    def walks(self, compiled: CompiledGuide, tokens: Sequence[int]) -> dict[str, Walk]:
        """Return ways to move one matcher from its start along the tokens."""
        bitmask = llguidance.numpy.allocate_token_bitmask(1, self._words * 32)
        pointer, size = bitmask.ctypes.data, bitmask.nbytes

        def raw(matcher: llguidance.LLMatcher) -> Walk:
            def walk() -> None:
                matcher.reset()
                for token in tokens:
                    matcher.unsafe_compute_mask_ptr(pointer, size)
                    assert matcher.consume_token(token)

            return walk

        def wrapped(matcher: llguidance.LLMatcher) -> Walk:
            def walk() -> None:
                matcher.reset()
                for token in tokens:
                    llguidance.numpy.fill_next_token_bitmask(matcher, bitmask)
                    assert matcher.consume_token(token)

            return walk

        new = [self._new(Place(compiled, ())) for _ in range(2)]
        return {"LLMatcher, raw pointer": raw(new[0]), "LLMatcher, numpy": wrapped(new[1])}

    def steps(self, places: Sequence[Place]) -> dict[str, Step]:
        """Return ways to make one step of a batch: accept a token in each matcher, and fill all masks. The matchers
        are new. The result is valid until the next call."""
        # Keep the array alive: the calls hold only its address.
        self._bitmask = llguidance.numpy.allocate_token_bitmask(len(places), self._words * 32)
        pointer, size = self._bitmask.ctypes.data, 4 * self._words

        def loop(matchers: list[llguidance.LLMatcher]) -> Step:
            def step(tokens: Sequence[int]) -> None:
                for row, (matcher, token) in enumerate(zip(matchers, tokens, strict=True)):
                    matcher.consume_token(token)
                    matcher.unsafe_compute_mask_ptr(pointer + row * size, size)

            return step

        def shared(matchers: list[llguidance.LLMatcher], executor: llguidance.LLExecutor) -> Step:
            rows = [(matcher, row) for row, matcher in enumerate(matchers)]

            def step(tokens: Sequence[int]) -> None:
                for matcher, token in zip(matchers, tokens, strict=True):
                    matcher.consume_token(token)
                executor.unsafe_compute_mask_ptr(rows, pointer, size, len(rows))

            return step

        def new() -> list[llguidance.LLMatcher]:
            return [self._new(place) for place in places]

        return {
            "LLMatcher, raw pointer, one by one": loop(new()),
            "LLExecutor": shared(new(), llguidance.LLExecutor()),
        }


OWN_CALLS: dict[str, Callable[[Vocabulary], OwnCalls]] = {
    "xgrammar": XGrammarCalls,
    "llguidance": LLGuidanceCalls,
}

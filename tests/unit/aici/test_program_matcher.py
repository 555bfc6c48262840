"""Programs as matchers: each token can be taken back, as if it had never been taken."""

from __future__ import annotations

import random
import re
import threading

import numpy as np
import pytest

from support.grammar.grammars import END, allowed
from support.wasm.programs import (
    MIXER,
    load,
    mask,
    scripted,
    start,
)
from weft.aici import wasm_undo_bytes
from weft.errors import GuideStateError
from weft.grammar import Matcher

# With so much memory that the kernel is asked which of it was written.
LARGE = MIXER.replace('(memory (export "memory") 2)', '(memory (export "memory") 20)').replace(
    "(memory.size) (i32.const 6)", "(memory.size) (i32.const 23)"
)


class TestTakingBack:
    """A program whose masks depend on all that it was told, and whose memory grows."""

    def straight(self, tokens: list[int], text: str = MIXER, **limits: int) -> Matcher:
        matcher = start(text, **limits)
        for token in tokens:
            assert matcher.accept(token)
        return matcher

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("text", [MIXER, LARGE], ids=["small", "large"])
    @pytest.mark.parametrize("limits", [{}, {"undo_tokens": 6}, {"undo_bytes": 300_000}], ids=str)
    def test_a_walk_equals_a_straight_run(self, seed: int, text: str, limits: dict[str, int]) -> None:
        rng = random.Random(seed)
        matcher = start(text, **limits)
        masks = [mask(matcher)]
        taken: list[int] = []
        for _ in range(60):
            choices = [token for token in masks[-1] if token != END]
            roll = rng.random()
            if roll < 0.55:
                taken.append(rng.choice(choices))
                assert matcher.accept(taken[-1])
                masks.append(mask(matcher))
            elif roll < 0.8:
                back = rng.randint(0, min(len(taken), 4))
                try:
                    matcher.rollback(back)
                    del taken[len(taken) - back :], masks[len(masks) - back :]
                except GuideStateError:
                    assert limits, "only a limit may keep tokens from being taken back"
            elif roll < 0.9:
                draft = [rng.choice(choices), 5, rng.randrange(300), 5]
                assert 1 <= matcher.validate(draft) <= 4
            else:
                refused = set(range(300)) - set(masks[-1])
                assert not matcher.accept(min(refused))
            assert mask(matcher) == masks[-1]
        other = self.straight(taken, text)
        assert mask(other) == masks[-1]
        for token in (5, 5, 5):  # and the state behind the mask is the same, too
            assert matcher.accept(token) and other.accept(token)
            assert mask(matcher) == mask(other)
        matcher.reset()
        assert mask(matcher) == masks[0]
        for token, expected in zip(taken, masks[1:], strict=True):
            assert matcher.accept(token)
            assert mask(matcher) == expected

    def test_rolling_back_over_growing_memory_many_times(self) -> None:
        matcher = start(MIXER)
        masks = [mask(matcher)]
        for _ in range(40):
            assert matcher.accept(5)
            masks.append(mask(matcher))
        for _ in range(3):
            matcher.rollback(40)
            assert mask(matcher) == masks[0]
            for expected in masks[1:]:
                assert matcher.accept(5)
                assert mask(matcher) == expected

    def test_validating_changes_nothing_and_tells_what_is_taken(self) -> None:
        matcher = start(MIXER)
        assert [token for token in range(300) if matcher.validate([token])] == mask(matcher)
        other = self.straight([5, 5])
        good = next(token for token in mask(other) if token != END)
        bad = min(set(range(300)) - set(mask(other)))
        assert matcher.validate([5, 5, good]) == 3
        assert matcher.validate([5, 5, bad, 5]) == 2
        assert matcher.validate([]) == 0
        assert matcher.accept(5) and matcher.accept(5)
        assert mask(matcher) == mask(other)

    def test_forks_are_independent(self) -> None:
        matcher = self.straight([5, 5, 5])
        before = mask(matcher)
        fork = matcher.fork()
        assert mask(fork) == before
        assert matcher.accept(5)
        assert mask(fork) == before
        del matcher
        fork.rollback(3)
        assert mask(fork) == mask(start(MIXER))
        fork.reset()
        assert mask(fork) == mask(start(MIXER))

    def test_reset_behind_forced_tokens_that_are_too_many_to_take_back(self) -> None:
        """Only what the program never saw is past `undo_tokens`: its memory has to stay as it is."""
        many = list(range(5, 35))
        force = {"splices": [{"when_sampled": [], "backtrack": 0, "ff_tokens": many}]}
        matcher = start(scripted([(None, force), ([10], {})]), undo_tokens=16)
        for num_taken in (25, 30):
            for token in many[:num_taken]:
                assert matcher.accept(token)
            matcher.reset()
            assert matcher.forced(40) == many

    def test_what_is_too_far_to_take_back_says_so(self) -> None:
        matcher = self.straight([5] * 10, undo_tokens=4)
        before = mask(matcher)
        with pytest.raises(
            GuideStateError,
            match=r"rollback of 5 tokens, where 4 can be taken back; raise undo_tokens to at least 5 to allow it$",
        ):
            matcher.rollback(5)
        assert mask(matcher) == before
        with pytest.raises(GuideStateError, match="rollback of 2 tokens, where 1 were taken"):
            self.straight([5]).rollback(2)
        with pytest.raises(GuideStateError, match="negative"):
            matcher.rollback(-1)

    def test_steps_that_change_more_than_is_kept(self) -> None:
        """Only taking them back fails, and what is asked for then is enough."""
        matcher = self.straight([5] * 6, undo_bytes=2000)
        other = self.straight([5] * 6)
        assert mask(matcher) == mask(other)
        with pytest.raises(
            GuideStateError, match="of 2 tokens, where 0 can be taken back; raise undo_bytes"
        ) as refused:
            matcher.rollback(2)
        needed = int(re.findall(r"at least (\d+) to allow it", str(refused.value))[0])
        assert mask(matcher) == mask(other)
        with pytest.raises(GuideStateError, match=rf"raise undo_bytes to at least {needed} "):
            self.straight([5] * 6, undo_bytes=needed - 1).rollback(2)
        enough = self.straight([5] * 6, undo_bytes=needed)
        enough.rollback(2)
        assert mask(enough) == mask(self.straight([5] * 4))

    def test_what_was_merged_before_tokens_were_taken_back_names_the_limit(self) -> None:
        sizes = [wasm_undo_bytes(self.straight([5] * count)) for count in range(4)]
        limits = {"undo_bytes": sizes[3] - 1}
        matcher = self.straight([5] * 3, **limits)
        matcher.rollback(2)
        with pytest.raises(
            GuideStateError, match=rf"where 0 can be .*; raise undo_bytes to at least {sizes[3]} to allow it$"
        ):
            matcher.rollback(1)
        matcher = self.straight([5] * 5, undo_tokens=4)
        matcher.rollback(4)
        with pytest.raises(
            GuideStateError, match=r"where 0 can be .*; raise undo_tokens to at least 5 to allow it$"
        ):
            matcher.rollback(1)

    def test_validating_is_not_kept_from_taking_back(self) -> None:
        matcher = self.straight([5, 5], undo_tokens=2)
        assert matcher.validate([5] * 9) == 9
        assert mask(matcher) == mask(self.straight([5, 5]))
        matcher.rollback(2)  # nor were the tokens before
        assert mask(matcher) == mask(start(MIXER))
        matcher = self.straight([5], undo_bytes=60_000)
        with pytest.raises(
            GuideStateError, match=r"tokens that were tried changed \d+ bytes; raise undo_bytes"
        ):
            matcher.validate([5] * 9)
        assert mask(matcher) == mask(self.straight([5]))

    def test_many_threads_give_the_same(self) -> None:
        expected = [mask(self.straight([5] * count)) for count in range(12)]
        failures: list[int] = []
        made = load(MIXER)

        def walk() -> None:
            for _ in range(3):
                matcher = made.start(b"", [])
                for count in range(12):
                    if mask(matcher) != expected[count] or not matcher.accept(5):
                        failures.append(count)
                    if count % 3 == 0:
                        matcher.rollback(1)
                        matcher.accept(5)

        threads = [threading.Thread(target=walk) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


def test_wide_rows_end_in_zeros() -> None:
    matcher = start(MIXER)
    wide = np.full(16, -1, dtype=np.int32)
    matcher.fill(wide)
    assert not wide[10:].any() and allowed(wide) == mask(matcher)
    with pytest.raises(GuideStateError, match="shorter than the vocabulary"):
        matcher.fill(np.zeros(3, dtype=np.int32))

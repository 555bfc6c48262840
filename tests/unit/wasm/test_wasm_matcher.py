"""Programs as matchers: what they decide is what the engine sees, and each token can be taken back."""

from __future__ import annotations

import json
import random
import re
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import wasmtime

from support.grammar.grammars import END, allowed, new_row, small_vocabulary
from support.wasm.programs import (
    MIXER,
    PROMPT,
    START,
    data,
    load,
    loaded,
    log_text,
    program,
    scripted,
    start,
)
from weft import _core
from weft.errors import GuideError, GuideStateError, InputError
from weft.grammar import Matcher
from weft.grammar.wasm import wasm_undo_bytes
from weft.guided.state import GuidedState

STOP = '{"branches":[]}'
AB, CD = [100, 101], [102, 103]  # the tokens of letters

# With so much memory that the kernel is asked which of it was written.
LARGE = MIXER.replace('(memory (export "memory") 2)', '(memory (export "memory") 20)').replace(
    "(memory.size) (i32.const 6)", "(memory.size) (i32.const 23)"
)


def mask(matcher: Matcher) -> list[int]:
    row = new_row()
    row[:] = -1
    matcher.fill(row)
    return allowed(row)


def told(matcher: Matcher) -> list[str]:
    """What a scripted program was told after the start, without what is always the same."""
    lines = _core.wasm_logs(matcher).splitlines()
    assert all(line.startswith('{"backtrack":0,') and line.endswith(',"fork_group":[1]}') for line in lines)
    return [line[len('{"backtrack":0,') : -len(',"fork_group":[1]}')] for line in lines][1:]


def state(matcher: Matcher) -> tuple[list[int], bool, float | None, list[int]]:
    return mask(matcher), matcher.is_terminated(), matcher.temperature(), matcher.forced(9)


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


class TestDecisions:
    def test_masks_temperature_and_the_end(self) -> None:
        matcher = start(scripted([([5, 6], {"temperature": 0.25}), ([7, END], {}), '{"branches":[]}']))
        assert state(matcher) == ([5, 6], False, 0.25, [])
        assert not matcher.accept(END) and not matcher.accept(-1) and not matcher.accept(300)
        assert matcher.accept(6)
        assert state(matcher) == ([END, 7], False, None, [])
        assert matcher.accept(7)
        assert state(matcher) == ([END], False, None, [])  # no branch: it stops
        assert matcher.accept(END)
        assert state(matcher) == ([END], True, None, [])
        assert not matcher.accept(END)
        matcher.rollback(2)
        assert state(matcher) == ([END, 7], False, None, [])
        assert matcher.accept(END)
        assert matcher.is_terminated()
        assert told(matcher) == ['"tokens":[6],"sampled":6']

    def test_special_tokens_are_the_programs_to_allow(self) -> None:
        assert mask(start(scripted([([1, 2, 299], {})]))) == [1, 2, 299]

    def test_forced_tokens_come_one_after_another(self) -> None:
        force = {"splices": [{"when_sampled": [], "backtrack": 0, "ff_tokens": [9, 8, 7]}]}
        matcher = start(scripted([(None, force), ([5], {})]))
        assert state(matcher) == ([9], False, None, [9, 8, 7])
        assert not matcher.accept(8)
        assert matcher.accept(9)
        assert state(matcher) == ([8], False, None, [8, 7])
        assert matcher.forced(1) == [8]
        assert matcher.validate([8, 7, 5]) == 3
        assert matcher.accept(8) and matcher.accept(7)
        assert state(matcher) == ([5], False, None, [])
        assert told(matcher) == ['"tokens":[9,8,7],"sampled":null']  # one call, behind the last of them
        matcher.rollback(2)
        assert state(matcher) == ([8], False, None, [8, 7])
        assert told(matcher) == []

    def test_a_forced_end_ends(self) -> None:
        force = {"splices": [{"when_sampled": [], "backtrack": 0, "ff_tokens": [9, END]}]}
        matcher = start(scripted([(None, force)]))
        assert matcher.accept(9) and matcher.accept(END)
        assert matcher.is_terminated()
        assert told(matcher) == []

    def test_a_program_that_asks_for_nothing_is_asked_again(self) -> None:
        nothing = (None, {"splices": [{"when_sampled": [], "backtrack": 0, "ff_tokens": []}]})
        matcher = start(scripted([([5], {}), nothing, nothing, ([6], {})]))
        assert matcher.accept(5)
        assert mask(matcher) == [6]
        assert told(matcher) == ['"tokens":[5],"sampled":5', *['"tokens":[],"sampled":null'] * 2]
        with pytest.raises(GuideError, match="neither sampled nor forced a token in 100 steps"):
            start(scripted([nothing]))

    def test_a_splice_behind_a_sampled_token(self) -> None:
        splices = [
            {"when_sampled": [6, 5], "backtrack": 0, "ff_tokens": [9, 8]},
            {"when_sampled": [7], "ff_tokens": []},
        ]
        matcher = start(scripted([([5, 6, 7, 4], {"splices": splices}), ([10], {})]))
        assert matcher.accept(5)
        assert state(matcher) == ([9], False, None, [9, 8])
        assert matcher.accept(9) and matcher.accept(8)
        assert told(matcher) == ['"tokens":[5,9,8],"sampled":5']
        matcher.rollback(3)
        for token in (4, 7):
            assert matcher.accept(token)
            assert mask(matcher) == [10]
            assert told(matcher) == [f'"tokens":[{token}],"sampled":{token}']
            matcher.rollback(1)

    @pytest.mark.parametrize("when", [[5], []], ids=["that token", "any token"])
    def test_a_splice_in_the_place_of_a_sampled_token(self, when: list[int]) -> None:
        splices = [{"when_sampled": when, "backtrack": 1, "ff_tokens": [9, 8]}]
        matcher = start(scripted([([5], {"splices": splices}), ([10], {})]))
        assert matcher.validate([5, 10]) == 1  # what follows a token that is replaced can't be told
        assert matcher.accept(5)
        assert matcher.splice(8) == (1, [9, 8])
        assert mask(matcher) == [10]
        # The program never had the token, so that it has nothing to take back.
        assert told(matcher) == ['"tokens":[9,8],"sampled":5']
        with pytest.raises(GuideStateError, match="a splice of 2 tokens, where there is room for 1"):
            matcher.splice(1)
        matcher.rollback(1)
        assert mask(matcher) == [5]
        with pytest.raises(GuideStateError, match="not replaced"):
            matcher.splice(8)

    def test_a_splice_that_drops_the_end(self) -> None:
        splices = [{"when_sampled": [END], "backtrack": 1, "ff_tokens": []}]
        matcher = start(scripted([([5, END], {"splices": splices}), ([10], {})]))
        assert matcher.accept(END)
        assert not matcher.is_terminated()
        assert matcher.splice(8) == (1, [])
        assert told(matcher) == ['"tokens":[],"sampled":0']
        assert mask(matcher) == [10]

    def test_a_splice_that_ends(self) -> None:
        splices = [{"when_sampled": [5], "backtrack": 1, "ff_tokens": [9, END, 7]}]
        matcher = start(scripted([([5], {"splices": splices}), ([10], {})]))
        assert matcher.accept(5)
        assert matcher.splice(8) == (1, [9, END])
        assert matcher.is_terminated()
        matcher.rollback(1)
        assert not matcher.is_terminated()


def test_a_token_that_is_replaced_stops_its_slot_alone() -> None:
    """As a draft it is not taken; sampled, its slot waits for the host to write the text anew."""
    splices = [{"when_sampled": [5], "backtrack": 1, "ff_tokens": [9]}]
    text = scripted([([5, 6], {"splices": splices}), ([7], {})])
    state = GuidedState(3, 2, small_vocabulary().vocab_size, [END])
    state.push([0, 1], {0: start(text), 1: start(text)})
    state.fetch()
    state.drafts_host[:, :2] = 5
    state.extend(1)
    state.extend(2)
    assert state.extended(0) == 0
    for slot, token in ((0, 5), (1, 6)):
        state.verified_host[slot, 0] = 0
        state.verified_host[slot, 1] = token
    state.commit()
    assert state.status(0)[0] == "spliced"
    splice = state.splice(0)
    assert splice is not None and (splice.backtrack, list(splice.tokens)) == (1, [9])
    assert state.status(1) == ("", "") and state.committed(1) == 1
    assert allowed(state.masks_host[3].numpy()) == [7]


def prompted(answer: Any, steps: list[Any]) -> str:
    """A program that puts this prompt in the place of the request's."""
    text = json.dumps({"prompt": answer}, separators=(",", ":"))
    shown = (
        "(call $result (i32.const 2048) (call $read (call $process_arg) (i32.const 2048) (i32.const 2048)))"
    )
    given = f"(call $result (i32.const 3100) (i32.const {len(text)}))"
    return scripted(steps).replace(PROMPT, PROMPT.replace(shown, given) + data(3100, text))


class TestWhatAProgramIsTold:
    def test_the_argument_the_prompt_and_the_interface(self) -> None:
        body = f"""(local $at i32)
          (drop (call $read (call $module_arg) (i32.const 0) (i32.const 8)))
          (i32.store (i32.const 8) (call $read (call $trie) (i32.const 16) (i32.const 6)))
          {log_text(0, 8)} {log_text(16, 6)}
          (i32.store (i32.const 32)
            (call $read (call $tokenize (i32.const 64) (i32.const 4)) (i32.const 0) (i32.const 0)))
          (drop (call $read (call $tokenize (i32.const 64) (i32.const 4)) (i32.const 36) (i32.const 8)))
          (i32.store8 (i32.const 44) (i32.add (i32.const 48) (call $config (i32.const 68) (i32.const 4))))
          (i32.store8 (i32.const 45) (i32.add (i32.const 48) (call $config (i32.const 72) (i32.const 9))))
          (i32.store8 (i32.const 46) (i32.add (i32.const 48) (call $config (i32.const 81) (i32.const 9))))
          (i32.store8 (i32.const 47) (i32.add (i32.const 48) (call $seq)))
          {log_text(32, 16)}
          (call $result (i32.const 2000) (i32.const 15))"""
        text = program(
            body,
            data(64, "abcZforkbacktrackff_tokens") + data(2000, STOP),
        )
        logs = _core.wasm_logs(start(text, b"argument"))
        assert logs[:14] == "argumenta trie"
        assert (
            logs[14:].encode()
            == bytes([8, 0, 0, 0])
            + (3 + 256 + 5).to_bytes(4, "little")
            + (3 + ord("Z")).to_bytes(4, "little")
            + b"0011"
        )

    def test_the_prompt(self) -> None:
        shown = program("(call $result (i32.const 3000) (i32.const 15))", data(3000, STOP))
        echo = shown.replace(
            "(call $result (i32.const 2048)", f"{log_text(0, 0)} (call $result (i32.const 2048)"
        )
        assert mask(start(echo, prompt=[1, 2, 3])) == [END]
        replaced = re.sub(
            r"\(call \$result \(i32.const 2048\) .*\)\)\)",
            "(call $result (i32.const 3100) (i32.const 13)))",
            shown,
        ).replace(
            "(data (i32.const 3000)", '(data (i32.const 3100) "{\\"prompt\\":[]}") (data (i32.const 3000)'
        )
        assert mask(start(replaced, prompt=[])) == [END]

    @pytest.mark.parametrize(
        ("answer", "forced", "taken"),
        [
            ([1, *AB], [], []),
            (AB, [], []),  # read as text and tokenized anew
            ([1, *AB, 7, 8], [7, 8], []),
            ([*AB, *CD], CD, []),
            ([1, AB[0]], [], [AB[1]]),
            (AB[:1], [], [AB[1]]),
            ([], [], AB),
        ],
    )
    def test_a_prompt_with_another_end(self, answer: list[int], forced: list[int], taken: list[int]) -> None:
        """What it adds is forced before its first step; what it takes away it is told again."""
        steps = [([token], {}) for token in taken]
        matcher = start(prompted(answer, [*steps, ([10], {})]), prompt=[1, *AB])
        for _ in range(2):
            for token in forced:
                assert mask(matcher) == [token]
                assert matcher.accept(token)
            assert mask(matcher) == [10]
            assert '"tokens":[],"sampled":null' in _core.wasm_logs(matcher).splitlines()[0]
            assert told(matcher) == [f'"tokens":[{token}],"sampled":{token}' for token in taken]
            matcher.rollback(len(forced))

    @pytest.mark.parametrize(
        ("answer", "problem"),
        [
            ([1, AB[1]], "another prompt in the place"),
            ([AB[1]], "another prompt in the place"),
            ([1, 5, 9], "another prompt in the place"),
            ([1, *AB, 300], "prompt that is no list of tokens"),
            ("text", "prompt that is no list of tokens"),
            ([1, AB[0]], "takes back the end of the prompt"),
        ],
    )
    def test_prompts_that_are_refused(self, answer: Any, problem: str) -> None:
        with pytest.raises(GuideError, match=problem):
            start(prompted(answer, [([10], {})]), prompt=[1, *AB])


class TestVariables:
    COMMAND = '{"WriteVar":{"name":"v","op":"Append","value":"4a4b"}}'

    ANSWER = '{"branches":[{"sample_mask":null,"splices":[{"when_sampled":[],"ff_tokens":[5]}]}]}'

    def writer(self, command: str = COMMAND, answer: str = ANSWER) -> str:
        return program(
            f"""(drop (call $storage (i32.const 6000) (i32.const {len(command)})))
            (call $result (i32.const 3000) (i32.const {len(answer)}))""",
            data(6000, command) + data(3000, answer),
        )

    def test_sequences_share_them_and_take_them_back(self) -> None:
        made, shared = load(self.writer()), _core.WasmVariables()
        one, two = made.start(b"", [], shared), made.start(b"", [], shared)
        assert shared.get("v") == (2, b"JKJK")
        assert one.accept(5)
        assert shared.get("v") == (3, b"JKJKJK")
        one.rollback(1)
        assert shared.get("v") == (2, b"JKJK")
        assert one.accept(5) and two.accept(5)
        one.rollback(1)  # two has written since: its write stands, and one's is not seen behind it
        assert shared.get("v") == (3, b"JKJKJK")
        two.rollback(1)
        assert shared.get("v") == (2, b"JKJK")
        assert shared.get("w") is None
        assert made.start(b"", []).validate([5, 5]) == 2
        assert shared.get("v") == (2, b"JKJK")

    def test_a_copy_takes_back_no_others_writes(self) -> None:
        """Copies have the same records of what was written before; what each takes back is its own affair."""
        shared = _core.WasmVariables()
        one = load(self.writer()).start(b"", [], shared)
        assert one.accept(5)
        two = one.fork()
        assert shared.get("v") == (2, b"JKJK")
        one.rollback(1)
        assert shared.get("v") == (2, b"JKJK")  # two has written it as well
        assert one.accept(5)
        assert shared.get("v") == (3, b"JKJKJK")
        two.rollback(1)
        assert shared.get("v") == (2, b"JKJK")  # one's, which it wrote anew
        three = one.fork()
        del one  # it ends with what it wrote
        three.rollback(1)
        assert shared.get("v") == (2, b"JKJK")

    def test_what_taking_back_gives_up_is_what_taking_added(self) -> None:
        """A copy's end keeps its write, which another's that settles behind it then makes larger."""
        shared = _core.WasmVariables()
        large = self.writer(self.COMMAND.replace("4a4b", "4a" * 10_000))
        other, one, third = (
            load(text).start(b"", [], shared) for text in (self.writer(), self.writer(), large)
        )
        before = wasm_undo_bytes(one)
        assert other.accept(5) and one.accept(5)
        after = wasm_undo_bytes(one)
        copy = one.fork()
        del copy
        assert third.accept(5)
        del third
        one.rollback(1)
        assert wasm_undo_bytes(one) == before
        assert one.accept(5)
        assert wasm_undo_bytes(one) == after

    def test_a_start_that_is_far_behind(self) -> None:
        shared = _core.WasmVariables()
        matcher = load(self.writer(), undo_tokens=4).start(b"", [], shared)
        for _ in range(2):
            assert all(matcher.accept(5) for _ in range(9))
            assert shared.get("v") == (10, b"JK" * 10)
            matcher.reset()
            assert shared.get("v") == (1, b"JK")
        assert all(matcher.accept(5) for _ in range(9))
        other = matcher.fork()
        with pytest.raises(GuideStateError, match=r"variables that other sequences share.*raise undo_tokens"):
            other.reset()
        assert shared.get("v") == (10, b"JK" * 10)
        other.rollback(4)
        matcher.rollback(3)
        assert shared.get("v") == (7, b"JK" * 7)

    def test_a_start_that_is_far_behind_where_another_has_ended(self) -> None:
        """It is in the way only of what it wrote itself."""
        shared = _core.WasmVariables()
        made = load(self.writer(), undo_tokens=4)
        matcher = made.start(b"", [], shared)
        assert all(matcher.accept(5) for _ in range(9))
        copy = matcher.fork()
        copy.rollback(4)
        del copy
        matcher.reset()
        assert shared.get("v") == (1, b"JK")
        assert all(matcher.accept(5) for _ in range(9))
        copy = matcher.fork()
        assert copy.accept(5)
        del copy
        with pytest.raises(GuideStateError, match="variables that other sequences share"):
            matcher.reset()
        assert shared.get("v") == (11, b"JK" * 11)

    def test_what_a_start_that_failed_wrote_is_gone(self) -> None:
        shared = _core.WasmVariables()
        with pytest.raises(GuideError, match="has no branches"):
            load(self.writer(answer="{}")).start(b"", [], shared)
        assert shared.get("v") is None

    def test_compare_and_set(self) -> None:
        shared = _core.WasmVariables()
        only_new = self.COMMAND.replace('"4a4b"', '"4C","when_version_is":2').replace("Append", "Set")
        load(self.writer()).start(b"", [], shared)
        load(self.writer(only_new)).start(b"", [], shared)
        assert shared.get("v") == (1, b"JK")
        load(self.writer()).start(b"", [], shared)
        load(self.writer(only_new)).start(b"", [], shared)
        assert shared.get("v") == (3, b"L")

    def test_quotas(self) -> None:
        matcher = start(self.writer(), variable_bytes=5)
        assert matcher.accept(5)
        with pytest.raises(GuideStateError, match=r"more than 5 bytes; raise variable_bytes"):
            matcher.accept(5)
        matcher.rollback(1)
        assert matcher.accept(5)
        shared = _core.WasmVariables()
        load(self.writer(), max_variables=1).start(b"", [], shared)
        with pytest.raises(GuideError, match="more than 1 variables; raise max_variables"):
            load(self.writer(self.COMMAND.replace('"v"', '"w"')), max_variables=1).start(b"", [], shared)

    @pytest.mark.parametrize(
        ("command", "problem"),
        [
            ("junk", "a storage command is not JSON"),
            ("{}", "neither ReadVar nor WriteVar"),
            ('{"ReadVar":{}}', "no text name"),
            ('{"WriteVar":{"name":"v","op":"Set","value":"4"}}', "not hexadecimal"),
            ('{"WriteVar":{"name":"v","op":"Set","value":"4x"}}', "not hexadecimal"),
            ('{"WriteVar":{"name":"v","op":"Drop","value":""}}', "neither Set nor Append"),
        ],
    )
    def test_commands_that_are_none(self, command: str, problem: str) -> None:
        with pytest.raises(GuideError, match=problem):
            start(self.writer(command))


BRANCH = '{"branches":[{"sample_mask":%s,"splices":%s}]}'


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ("", "gave no result|is not JSON"),
        ("branches", "is not JSON that can be read"),
        ('{"branches":[]} ?', "goes on behind its end"),
        ("[" * 40, "nests too deep"),
        ("{}", "has no branches"),
        ('{"branches":7}', "branches that are no list"),
        ('{"branches":[[]]}', "a branch that is no object"),
        ('{"branches":[{},{}]}', "forks"),
        ('{"branches":[{}]}', "neither samples"),
        (BRANCH % (77, "[]"), "names a mask that it did not return"),
        (BRANCH % ('"x"', "[]"), "sample_mask that is no number"),
        (BRANCH % ("null", '[{"when_sampled":[5],"ff_tokens":[6]}]'), "neither samples"),
        (BRANCH % ("null", '[{"when_sampled":[],"ff_tokens":[300]}]'), "not a token"),
        (BRANCH % ("null", '[{"when_sampled":[],"ff_tokens":[-1]}]'), "not a token"),
        (BRANCH % ("null", '[{"when_sampled":[],"ff_tokens":[1.5]}]'), "not a token"),
        (BRANCH % ("null", '[{"when_sampled":[],"ff_tokens":[1e99]}]'), "not a token"),
        (BRANCH % ("null", '[{"when_sampled":[],"ff_tokens":["a"]}]'), "no list of tokens"),
        (BRANCH % ("null", '[{"when_sampled":[],"backtrack":1,"ff_tokens":[6]}]'), "where none is sampled"),
        (BRANCH % ("null", '[{"when_sampled":[],"backtrack":2,"ff_tokens":[6]}]'), "more than one token"),
        (([], {}), "allows no token at all"),
        (([5], {"temperature": -1}), "temperature that is not 0 to 100"),
        (([5], {"temperature": "hot"}), "temperature that is no number"),
    ],
    ids=str,
)
def test_results_are_checked(result: Any, problem: str) -> None:
    with pytest.raises(GuideError, match=problem):
        start(scripted([result]))
    good = ([5], {})
    matcher = start(scripted([good, result]))
    with pytest.raises(GuideStateError, match=problem):
        matcher.accept(5)
    # A step that fails leaves no trace.
    assert mask(matcher) == [5]
    assert matcher.validate([5]) == 1
    matcher.rollback(0)


def test_a_mask_of_another_step_is_refused() -> None:
    body = """(global.set $step (i32.add (global.get $step) (i32.const 1)))
      (if (i32.eq (global.get $step) (i32.const 1)) (then (drop (call $bias (i32.const 4096)))))
      (call $result (i32.const 3000) (i32.const 33))"""
    result = '{"branches":[{"sample_mask":1 }]}'
    text = program(body, data(3000, result) + '(data (i32.const 4096) "\\20")')
    matcher = start(text)
    assert mask(matcher) == [5]
    with pytest.raises(GuideStateError, match="names a mask that it did not return in this step"):
        matcher.accept(5)


LOOP = "(loop $ever (br $ever))"

EXTRA = "(func $r (call $r))" + data(3000, "bad luck!")
OUTSIDE = "a pointer that leaves its memory"
BREACHES: list[tuple[str, dict[str, int], str]] = [
    ("(call $r)", {"stack_bytes": 65536}, "limit of 65536 bytes; raise stack_bytes"),
    (
        "(call $result (i32.const 0) (i32.const 4097))",
        {"result_bytes": 4096},
        "4097 bytes, more than 4096; raise result_bytes",
    ),
    (
        "(drop (call $tokenize (i32.const 0) (i32.const 99)))",
        {"result_bytes": 90},
        "text to tokenize has 99 bytes",
    ),
    (
        f"(loop $ever {log_text(0, 4000)} (br $ever))",
        {"log_bytes": 5000},
        "more than 5000 bytes to its log in one step; raise log_bytes",
    ),
    ("(unreachable)", {}, "reached an instruction that ends it"),
    (f"{log_text(3000, 9)} (unreachable)", {}, "its last words: bad luck!$"),
    ("(drop (i32.div_u (i32.const 1) (global.get $step)))", {}, "divided by zero"),
    ("(drop (i32.load (i32.const -4)))", {}, "memory that it does not have"),
    ("(call $stop)", {}, "stopped itself"),
    ("nop", {}, "aici_mid_process gave no result"),
    ("(call $result (i32.const -8) (i32.const 64))", {}, OUTSIDE),
    ("(drop (call $bias (i32.const 131072)))", {}, OUTSIDE),
    ("(drop (call $read (i32.const 100) (i32.const 131070) (i32.const -1)))", {}, OUTSIDE),
    ("(drop (call $write (i32.const 1) (i32.const 0) (i32.const 0x20000000) (i32.const 0)))", {}, OUTSIDE),
    ("(drop (call $read (i32.const 99) (i32.const 0) (i32.const 1)))", {}, "blob 99, which there is none"),
    ("(drop (call $bias (i32.const 0))) (drop (call $bias (i32.const 0)))", {}, "two masks in one step"),
]


class TestLimits:
    def test_a_step_that_takes_too_long(self) -> None:
        text = program(
            f"""(if (global.get $step) (then {LOOP}))
            (global.set $step (i32.const 1)) (drop (call $bias (i32.const 4096)))
            (call $result (i32.const 3000) (i32.const 33))""",
            data(3000, '{"branches":[{"sample_mask":1 }]}') + '(data (i32.const 4096) "\\20")',
        )
        matcher = start(text, step_ms=5)
        for _ in range(2):
            with pytest.raises(GuideStateError, match="more than 5 ms for one step; raise step_ms"):
                matcher.accept(5)
            assert mask(matcher) == [5]
        other = start(scripted([([5], {}), ([6], {})]))
        assert other.accept(5) and mask(other) == [6]

    def test_other_threads_go_on_meanwhile(self) -> None:
        text = program(
            f"""(if (global.get $step) (then {LOOP}))
            (global.set $step (i32.const 1)) (drop (call $bias (i32.const 4096)))
            (call $result (i32.const 3000) (i32.const 33))""",
            data(3000, '{"branches":[{"sample_mask":1 }]}') + '(data (i32.const 4096) "\\20")',
        )
        matcher, turns, during = start(text, step_ms=30), [0], []

        def walk() -> None:
            for call in (lambda: matcher.accept(5), lambda: matcher.validate([5, 5])):
                before = turns[0]
                with pytest.raises(GuideStateError, match="raise step_ms"):
                    call()
                during.append(turns[0] - before)

        thread, interval = threading.Thread(target=walk), sys.getswitchinterval()
        sys.setswitchinterval(100)  # nobody has to let go of the GIL
        try:
            thread.start()
            while thread.is_alive():
                turns[0] += 1
                time.sleep(0)
        finally:
            sys.setswitchinterval(interval)
        assert len(during) == 2 and min(during) > 0

    @pytest.mark.parametrize(
        "text",
        [
            program("", start=START.replace("(i32.const 1))", f"{LOOP} (i32.const 1))")),
            program("", extra=f"(func $first {LOOP}) (start $first)"),
            program(LOOP),
        ],
        ids=["create", "start function", "first step"],
    )
    def test_a_start_that_takes_too_long(self, text: str) -> None:
        with pytest.raises(GuideError, match="more than 20 ms to start; raise start_ms"):
            start(text, start_ms=20)

    @pytest.mark.parametrize(("body", "limits", "problem"), BREACHES)
    def test_every_breach_says_what_it_is(self, body: str, limits: dict[str, int], problem: str) -> None:
        with pytest.raises(GuideError, match=problem):
            start(program(body, EXTRA), **limits)

    def test_what_is_declared_is_limited_too(self) -> None:
        with pytest.raises(GuideError, match="more memory than 65536 bytes; raise memory_bytes"):
            start(program(""), memory_bytes=65536)
        with pytest.raises(GuideError, match="more than 999 elements; raise table_elements"):
            start(program("", "(table 1000 funcref)"), table_elements=999)
        with pytest.raises(GuideError, match=r"multiple memories|multi-memory"):
            start(program("", '(memory (export "m") 1)'))

    def test_memory_that_is_not_had(self) -> None:
        text = program(
            """(i32.store8 (i32.const 900) (i32.add (i32.const 49) (memory.grow (i32.const 100))))
            (i32.store8 (i32.const 901) (i32.add (i32.const 49) (memory.grow (i32.const 1))))"""
            + log_text(900, 2)
            + "(call $result (i32.const 3000) (i32.const 15))",
            data(3000, STOP),
        )
        assert _core.wasm_logs(start(text, memory_bytes=4 * 65536)) == "03"

    def test_modules_that_are_not_programs(self) -> None:
        with pytest.raises(GuideError, match=r"imports what programs don't have.*sock_accept"):
            start('(module (import "wasi_snapshot_preview1" "sock_accept" (func)))')
        with pytest.raises(GuideError, match="exports no memory"):
            start("(module)")
        with pytest.raises(GuideError, match="exports no function aici_init_prompt"):
            start('(module (memory (export "memory") 1))')
        with pytest.raises(GuideError, match="its aici_create returns no i32"):
            start(
                program(
                    "",
                    start='(func (export "aici_init")) (func (export "aici_create") (result i64) (i64.const 1))',
                )
            )
        with pytest.raises(GuideError, match=r"in aici_init: .*argument"):
            start(program("", start=START.replace('"aici_init")', '"aici_init") (param v128)')))
        with pytest.raises(GuideError, match="does not compile"):
            _core.wasm_compile(b"\0asm\1\0\0\0garbage!")
        with pytest.raises(GuideError, match="can't be loaded"):
            loaded(b"garbage")

    def test_calls_through_tables_as_compilers_write_them(self) -> None:
        """Today's compilers write the table's number, 0, in five bytes."""
        text = "(module (type $t (func)) (table 1 funcref) (func $f) (func (call_indirect (type $t) (i32.const 0))))"
        short = bytes(wasmtime.wat2wasm(text))
        call = short.index(bytes([0x41, 0, 0x11, 0, 0, 0x0B]))
        long = bytearray(short)
        long[call + 4 : call + 5] = bytes([0x80, 0x80, 0x80, 0x80, 0])
        long[call - 2] += 4  # the body's size
        long[short.rindex(bytes([0x0A]), 0, call) + 1] += 4  # the section's
        for module in (short, bytes(long)):
            assert _core.wasm_compile(module)

    def test_limits_are_checked(self) -> None:
        with pytest.raises(InputError, match="a program has no limit of_mine"):
            load(MIXER, of_mine=1)
        with pytest.raises(InputError, match="step_ms can't be 0"):
            load(MIXER, step_ms=0)
        with pytest.raises(GuideError, match="stack_bytes is 100; it can be"):
            load(MIXER, stack_bytes=100)


def test_a_library_that_is_none() -> None:
    """In a process of its own, as the first library that binds stays."""
    import subprocess
    import sys

    code = (
        "from weft import _core; print(_core.wasm_bind('/nowhere.so')); print(_core.wasm_bind('libm.so.6'))"
    )
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.splitlines()
    assert "nowhere.so" in lines[0]
    assert lines[1] == "the function wasm_config_new is missing"


def test_wide_rows_end_in_zeros() -> None:
    matcher = start(MIXER)
    wide = np.full(16, -1, dtype=np.int32)
    matcher.fill(wide)
    assert not wide[10:].any() and allowed(wide) == mask(matcher)
    with pytest.raises(GuideStateError, match="shorter than the vocabulary"):
        matcher.fill(np.zeros(3, dtype=np.int32))

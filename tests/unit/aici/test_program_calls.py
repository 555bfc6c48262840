"""What programs are told, and the variables that sequences share."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from support.grammar.grammars import END
from support.wasm.programs import (
    PROMPT,
    STOP,
    data,
    load,
    log_text,
    mask,
    program,
    scripted,
    start,
    told,
)
from weft import _core
from weft.aici import wasm_undo_bytes
from weft.errors import GuideError, GuideStateError

AB, CD = [100, 101], [102, 103]  # the tokens of letters


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
        logs = _core.aici_log(start(text, b"argument"))
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
            assert '"tokens":[],"sampled":null' in _core.aici_log(matcher).splitlines()[0]
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
        made, shared = load(self.writer()), _core.AiciVariables()
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
        shared = _core.AiciVariables()
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
        shared = _core.AiciVariables()
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
        shared = _core.AiciVariables()
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
        shared = _core.AiciVariables()
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
        shared = _core.AiciVariables()
        with pytest.raises(GuideError, match="has no branches"):
            load(self.writer(answer="{}")).start(b"", [], shared)
        assert shared.get("v") is None

    def test_compare_and_set(self) -> None:
        shared = _core.AiciVariables()
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
        shared = _core.AiciVariables()
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

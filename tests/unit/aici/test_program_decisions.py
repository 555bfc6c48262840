"""What programs decide is what the engine sees; what they can't decide is refused."""

from __future__ import annotations

from typing import Any

import pytest

from support.grammar.grammars import END, allowed, small_vocabulary
from support.wasm.programs import (
    data,
    mask,
    program,
    scripted,
    start,
    state,
    told,
)
from weft.errors import GuideError, GuideStateError
from weft.guided.state import GuidedShape, GuidedState


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
        assert matcher.edit(8) == (1, [9, 8])
        assert mask(matcher) == [10]
        # The program never had the token, so that it has nothing to take back.
        assert told(matcher) == ['"tokens":[9,8],"sampled":5']
        with pytest.raises(GuideStateError, match="an edit of 2 tokens, where there is room for 1"):
            matcher.edit(1)
        matcher.rollback(1)
        assert mask(matcher) == [5]
        with pytest.raises(GuideStateError, match="not replaced"):
            matcher.edit(8)

    def test_a_splice_that_drops_the_end(self) -> None:
        splices = [{"when_sampled": [END], "backtrack": 1, "ff_tokens": []}]
        matcher = start(scripted([([5, END], {"splices": splices}), ([10], {})]))
        assert matcher.accept(END)
        assert not matcher.is_terminated()
        assert matcher.edit(8) == (1, [])
        assert told(matcher) == ['"tokens":[],"sampled":0']
        assert mask(matcher) == [10]

    def test_a_splice_that_ends(self) -> None:
        splices = [{"when_sampled": [5], "backtrack": 1, "ff_tokens": [9, END, 7]}]
        matcher = start(scripted([([5], {"splices": splices}), ([10], {})]))
        assert matcher.accept(5)
        assert matcher.edit(8) == (1, [9, END])
        assert matcher.is_terminated()
        matcher.rollback(1)
        assert not matcher.is_terminated()


def test_a_token_that_is_replaced_stops_its_slot_alone() -> None:
    """As a draft it is not taken; sampled, its slot waits for the host to write the text anew."""
    splices = [{"when_sampled": [5], "backtrack": 1, "ff_tokens": [9]}]
    text = scripted([([5, 6], {"splices": splices}), ([7], {})])
    state = GuidedState(GuidedShape(3, 2, small_vocabulary().vocab_size, [END]))
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
    assert state.status(0)[0] == "edited"
    edit = state.edit(0)
    assert edit is not None and (edit.drop, list(edit.append)) == (1, [9])
    assert state.status(1) == ("", "") and state.committed(1) == 1
    assert allowed(state.masks_host[3].numpy()) == [7]


BRANCH = '{"branches":[{"sample_mask":%s,"splices":%s}]}'


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ("", "gave no result|is not JSON"),
        ("branches", "is not JSON that can be read"),
        ('{"branches":[]} ?', "goes on after its end"),
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

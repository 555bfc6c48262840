"""Beam search's own logic: against an exhaustive search over a tiny vocabulary, against a plain search without early
stopping, and case by case.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.engine.beam_oracle import Model, Text, plain_search
from support.engine.requests import engine_request
from weft.config import EngineConfig, Speculation
from weft.core import Hypothesis, SamplingParams
from weft.core.beam_params import BeamParams
from weft.engine.admission import check_search
from weft.engine.build import check_beam_width
from weft.engine.features.beam.search import BeamEnds, BeamSearch
from weft.engine.features.beam.trace import Trace
from weft.errors import InputError

END = 0


def random_model(seed: int, vocab: int, blocked: float = 0.0) -> Model:
    """Log-probabilities of the next token behind any text, some of them -inf; the same each time it is asked."""

    def model(text: Text) -> list[float]:
        rng = random.Random(f"{seed} {text}")
        weights = [rng.random() ** 3 + 1e-6 if rng.random() >= blocked else 0.0 for _ in range(vocab)]
        total = sum(weights)
        return [math.log(w / total) if w else -math.inf for w in weights]

    return model


def run(search: BeamSearch, model: Model) -> list[Hypothesis]:
    """The whole search over `model`, each beam offering no more than it has to."""
    for _ in range(search.ends.room):
        offers = []
        for beam in search.beams:
            values = model(tuple(beam.token_ids))
            order = sorted(range(len(values)), key=lambda token: -values[token])
            offers.append([(t, values[t]) for t in order[: search.num_needed] if values[t] > -math.inf])
        search.advance(offers)
        if search.is_done:
            break
    assert search.is_done
    return search.best()


def all_answers(model: Model, vocab: int, room: int) -> dict[Text, float]:
    """Every answer of at most `room` tokens with the sum of its log-probabilities."""
    found: dict[Text, float] = {}
    for length in range(1, room + 1):
        for text in itertools.product(range(vocab), repeat=length):
            if END in text[:-1] or (text[-1] != END and length < room):
                continue
            total = sum(model(text[:i])[token] for i, token in enumerate(text))
            if total > -math.inf:
                found[text] = total
    return found


def searches() -> st.SearchStrategy[tuple[int, int, int, BeamParams, float]]:
    """Seed, vocabulary, room, parameters, share of impossible tokens."""
    params = st.builds(
        BeamParams,
        width=st.integers(2, 5),
        length_penalty=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        early_stopping=st.integers(-1, 2),
        diversity_rate=st.sampled_from([0.0, 0.0, 0.3, 2.0]),
        widths=st.one_of(st.just(()), st.lists(st.integers(1, 5), min_size=1, max_size=4)),
    )
    return st.tuples(
        st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 6), params, st.sampled_from([0.0, 0.3])
    )


@given(searches())
@settings(max_examples=300, deadline=None)
def test_it_is_a_plain_beam_search(case: tuple[int, int, int, BeamParams, float]) -> None:
    seed, vocab, room, params, blocked = case
    model = random_model(seed, vocab, blocked)
    found = run_or_nothing(params, room, model)
    expected = plain_search(model, params, room, stops=True, ends={END})
    assert [tuple(h.token_ids) for h in found] == [text for _, text in expected]
    assert [h.score for h in found] == pytest.approx([score for score, _ in expected])
    for hypothesis in found:
        values = [model(tuple(hypothesis.token_ids[:i]))[t] for i, t in enumerate(hypothesis.token_ids)]
        assert hypothesis.log_probs == values
        assert hypothesis.cum_log_prob == pytest.approx(sum(values))
        assert hypothesis.finish_reason == ("stop" if hypothesis.token_ids[-1] == END else "length")


def run_or_nothing(params: BeamParams, room: int, model: Model) -> list[Hypothesis]:
    return run(BeamSearch(params, BeamEnds(room, frozenset({END}))), model)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(8))
def test_beams_that_hold_everything_find_the_best_of_all(seed: int, length_penalty: float) -> None:
    """With early stopping at 2 nothing is missed: the answers are the best of all texts there are."""
    vocab, room = 3, 4
    model = random_model(seed, vocab)
    params = BeamParams(vocab**room, 7, length_penalty, early_stopping=2)
    everything = all_answers(model, vocab, room)
    scores = {text: total / len(text) ** length_penalty for text, total in everything.items()}
    expected = sorted(scores, key=lambda text: -scores[text])[:7]
    assert [tuple(h.token_ids) for h in run_or_nothing(params, room, model)] == expected


@given(searches())
@settings(max_examples=150, deadline=None)
def test_stopping_when_no_better_can_come_changes_nothing(
    case: tuple[int, int, int, BeamParams, float],
) -> None:
    seed, vocab, room, given, blocked = case
    params = replace(given, early_stopping=2)
    model = random_model(seed, vocab, blocked)
    expected = plain_search(model, params, room, stops=False, ends={END})
    assert [tuple(h.token_ids) for h in run_or_nothing(params, room, model)] == [text for _, text in expected]


def test_early_stopping_of_one_ends_with_as_many_answers_as_beams() -> None:
    model = random_model(5, 4)
    lengths = {}
    for early in (0, 1, 2):
        search = BeamSearch(
            BeamParams(2, length_penalty=2.0, early_stopping=early), BeamEnds(12, frozenset({END}))
        )
        run(search, model)
        lengths[early] = max(len(beam.token_ids) for beam in search.beams) if search.beams else 12
    assert lengths[1] < lengths[2]
    assert lengths[1] <= lengths[0] <= lengths[2]


def test_diversity_favours_what_descends_from_later_beams_and_scores_do_not_know_of_it() -> None:
    offers = [[(1, -0.1), (2, -0.2), (3, -0.3)]]
    behind = [[(1, -0.1), (2, -0.2)], [(1, -0.5), (2, -0.6)]]

    def after(rate: float) -> BeamSearch:
        search = BeamSearch(BeamParams(2, diversity_rate=rate), BeamEnds(9, frozenset({END})))
        search.advance(offers)  # one beam, the prompt: nothing is favoured
        assert [beam.token_ids for beam in search.beams] == [[1], [2]]
        search.advance(behind)
        return search

    assert [beam.parent for beam in after(0.0).beams] == [0, 0]
    assert [beam.parent for beam in after(0.55).beams] == [1, 0]  # -0.7 + 0.55 before -0.2 before -0.8 + 0.55
    assert [beam.parent for beam in after(1.0).beams] == [1, 1]
    assert [beam.cum_log_prob for beam in after(1.0).beams] == pytest.approx([-0.7, -0.8])
    assert [h.token_ids for h in after(0.55).best()] == [[1, 1], [2, 1]]  # by their scores


def test_widths_say_how_many_beams_live_on_after_each_token() -> None:
    params = BeamParams(2, widths=[1, 3, 2], early_stopping=2)
    assert (params.width, params.num_answers) == (3, 3)
    search = BeamSearch(params, BeamEnds(9, frozenset({END})))
    numbers = []
    for _ in range(5):
        search.advance([[(token, -token / 10) for token in range(1, 8)] for _ in search.beams])
        numbers.append(len(search.beams))
    assert numbers == [1, 3, 2, 2, 2]
    assert search.beams[0].path[:2] == [0, 0] and len(search.beams[0].path) == 5


def test_a_narrow_step_looks_no_further_than_what_goes_on() -> None:
    search = BeamSearch(BeamParams(3, widths=[1]), BeamEnds(9, frozenset({END})))
    search.advance([[(END, -0.5), (1, -0.6), (2, -0.7)]])
    assert [answer.token_ids for answer in search.answers] == [[END]]
    search = BeamSearch(BeamParams(3, widths=[1]), BeamEnds(9, frozenset({END})))
    search.advance([[(1, -0.5), (END, -0.6), (2, -0.7)]])
    assert search.answers == [] and [beam.token_ids for beam in search.beams] == [[1]]


def test_answers_find_what_was_before_their_beams() -> None:
    trace = Trace(num_top=2)
    search = BeamSearch(BeamParams(2, early_stopping=2), BeamEnds(3, frozenset({END})), trace=trace)
    steps = [
        [[(1, -0.1), (2, -0.2), (3, -0.4)]],
        [[(5, -0.9), (6, -1.0)], [(7, -0.1), (8, -0.3)]],  # both go on from the second
        [[(9, -0.1), (END, -0.7)], [(4, -0.2), (3, -0.9)]],
    ]
    for number, offers in enumerate(steps):
        rows = [torch.tensor([[float(10 * number + beam)]]) for beam in range(len(offers))]
        trace.add([{"logits": row, "hidden": row + 0.5} for row in rows], offers)
        if number == 1:
            early = search.best()
        search.advance(offers)
    assert early[0].generation_logits is not None and early[0].generation_logits.tolist() == [[0.0]]
    expected = {(2, 7, 9): [0.0, 11.0, 20.0], (2, 8, 4): [0.0, 11.0, 21.0]}
    assert {tuple(h.token_ids) for h in search.best()} == set(expected)
    for found in search.best():
        rows_of = expected[tuple(found.token_ids)]
        assert found.generation_logits is not None
        assert found.generation_logits.flatten().tolist() == rows_of
        assert found.additional["hidden"].flatten().tolist() == [row + 0.5 for row in rows_of]
        assert found.top_log_probs is not None and found.top_log_probs[:2] == [
            {1: -0.1, 2: -0.2},
            {7: -0.1, 8: -0.3},
        ]
        assert [entry.logprob for entry in found.token_logprobs] == found.log_probs


class Watched:
    """Ends a text at two equal tokens in a row."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last

    def feed(self, token: int) -> str | None:
        is_twice, self.last = token == self.last, token
        return "twice" if is_twice else None

    def fork(self) -> Watched:
        return Watched(self.last)


def test_stop_words_and_stop_tokens_end_an_answer_behind_min_tokens() -> None:
    ends = BeamEnds(9, frozenset({END}), frozenset({7}), min_tokens=2)
    search = BeamSearch(BeamParams(2, early_stopping=2), ends, Watched())
    assert search.num_needed == 2 * 2 + 2
    search.advance([[(1, -0.1), (7, -0.2)]])
    assert [beam.token_ids for beam in search.beams] == [[1], [7]]  # a stop token too early is a token
    search.advance([[(1, -0.1)], [(2, -0.1)]])
    assert [beam.token_ids for beam in search.beams] == [[1, 1], [7, 2]]
    found = search.advance([[(1, -0.1), (3, -0.5)], [(7, -0.1), (4, -0.5)]])
    assert [(parent, answer.token_ids, answer.stopped_by) for parent, answer in found] == [
        (0, [1, 1, 1], "twice"),
        (1, [7, 2, 7], 7),
    ]
    assert [beam.token_ids for beam in search.beams] == [[1, 1, 3], [7, 2, 4]]


def test_a_beam_that_nothing_can_follow_is_dropped_and_the_last_ends_the_search() -> None:
    search = BeamSearch(BeamParams(2), BeamEnds(9, frozenset({END})))
    search.advance([[(1, -0.1), (2, -0.2)]])
    search.advance([[], [(3, -0.1)]])
    assert [beam.token_ids for beam in search.beams] == [[2, 3]]
    search.advance([[]])
    assert search.is_done and search.best() == []


def test_answers_so_far_are_the_best_of_both() -> None:
    search = BeamSearch(BeamParams(2, 2), BeamEnds(9, frozenset({END})))
    search.advance([[(END, -0.5), (1, -0.1), (2, -3.0)]])
    assert [(h.token_ids, h.finish_reason) for h in search.best()] == [([1], None), ([END], "stop")]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"width": 1}, "beam width is 1; it must be 2 or more"),
        ({"width": True}, "whole number"),
        ({"width": 2, "num_return_sequences": 3}, "1 to the width, 2"),
        ({"width": 2, "num_return_sequences": 0}, "1 to the width, 2"),
        ({"width": 2, "length_penalty": -1.0}, "0 or more"),
        ({"width": 2, "length_penalty": math.nan}, "0 or more"),
        ({"width": 2, "length_penalty": math.inf}, "0 or more"),
        ({"width": 2, "early_stopping": 0.5}, "whole number"),
        ({"width": 2, "diversity_rate": -0.1}, "0 or more"),
        ({"width": 2, "widths": [2] * 9}, "there are 9 widths; give 8 at most"),
        ({"width": 2, "widths": [3, 0]}, "beam width of a step is 0; it must be 1 or more"),
        ({"width": 2, "widths": 3}, "must be a list"),
        ({"width": 1, "widths": [1, 1]}, "beam width is 1; it must be 2 or more"),
        ({"width": 0, "widths": [4]}, "beam width is 0"),
    ],
)
def test_wrong_parameters_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        BeamParams(**wrong)


def test_scores_are_numbers_however_large_the_penalty() -> None:
    assert BeamParams(2, length_penalty=2.0).score(-8.0, 2) == -2.0
    assert BeamParams(2, length_penalty=5000).score(-8.0, 2) == 0
    assert BeamParams(2, length_penalty=5000).score(-8.0, 1) == -8.0
    assert BeamParams(2, early_stopping=-7, diversity_rate=1e9).early_stopping == -7


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        (SamplingParams(temperature=1.0, top_k=3), "top_k is 3"),
        (SamplingParams(temperature=1.0, top_p=0.5), "top_p is 0.5"),
        (SamplingParams(temperature=1.0, min_p=0.5), "min_p is 0.5"),
    ],
)
def test_what_beams_cannot_do_is_refused(sampling: SamplingParams, says: str) -> None:
    with pytest.raises(InputError, match=says):
        check_search(engine_request([1], sampling, 0, beam=BeamParams(2)).request)


def test_a_watcher_of_one_text_only_is_refused() -> None:
    class Single:
        def feed(self, token: int) -> str | None:
            return None

    with pytest.raises(InputError, match="give one with fork"):
        check_search(
            engine_request([1], SamplingParams(), 0, stop_words=Single(), beam=BeamParams(2)).request
        )


def test_an_engine_that_speculates_or_is_too_small_has_no_beams() -> None:
    check_beam_width(8, Speculation.none(), EngineConfig(max_batch=8))
    check_beam_width(1, Speculation.ngram(), EngineConfig(max_batch=1))
    with pytest.raises(InputError, match=r"does not work with speculation \(ngram\)"):
        check_beam_width(2, Speculation.ngram(), EngineConfig())
    with pytest.raises(InputError, match="but 4 sequences"):
        check_beam_width(5, Speculation.none(), EngineConfig(max_batch=4))
    with pytest.raises(InputError, match=r"1 \(no beams\) or more"):
        check_beam_width(0, Speculation.none(), EngineConfig())

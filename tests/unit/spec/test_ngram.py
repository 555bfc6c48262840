"""Prompt lookup against a search of the whole text, and what the grammar makes of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from support.grammar.grammars import END, compiled, small_vocabulary
from weft.errors import InputError
from weft.grammar import Guide, Matcher
from weft.guided.proposals import NgramSettings, Proposals, Sources
from weft.guided.state import GuidedShape, GuidedState, host_memory

A, B, C = (3 + byte for byte in b"abc")


class Text:
    """A slot's text and its proposals: commits tokens and asks for drafts."""

    def __init__(
        self,
        prompt: Sequence[int],
        num_drafts: int = 4,
        guide: Guide | None = None,
        guided: bool = True,
        settings: NgramSettings | None = None,
    ) -> None:
        self.state = GuidedState(GuidedShape(2, num_drafts, small_vocabulary().vocab_size, [END]))
        self.proposals = Proposals(
            self.state, host_memory, Sources(ngram=settings or NgramSettings()), guided=guided
        )
        self.proposals.open(1, prompt, max_new_tokens=4)
        self.attach: dict[int, Matcher | None] = {1: compiled(guide).matcher()} if guide else {}

    def commit(self, tokens: Sequence[int], num_drafts: int | None = None) -> list[int]:
        """Commit 1 to K+1 tokens, as drafts that were accepted and a bonus; the drafts that follow."""
        self.state.push([1, 2], self.attach)
        self.attach = {}
        self.state.drafts_host.fill_(-1)
        for j, token in enumerate(tokens[:-1]):
            self.state.drafts_host[j, 1] = token
        self.state.fetch()
        self.state.extend_through(len(tokens) - 1)
        self.state.verified_host[1, 0] = len(tokens) - 1
        for i, token in enumerate(tokens):
            self.state.verified_host[1, 1 + i] = token
        self.state.commit()
        self.proposals.run(self.state.max_drafts if num_drafts is None else num_drafts)
        assert self.proposals.proposed_host[:, [0, 2]].eq(-1).all()
        row: list[int] = self.proposals.proposed_host[:, 1].tolist()
        drafts = list(itertools.takewhile(lambda token: token >= 0, row))
        assert row == drafts + [-1] * (self.state.max_drafts - len(drafts))
        return drafts


def oracle(text: Sequence[int], num_drafts: int, settings: NgramSettings) -> list[int]:
    """What followed the longest suffix of the text that occurred before, at its last earlier place."""
    for length in range(settings.max_length, settings.min_length - 1, -1):
        for place in range(len(text) - 1, length - 1, -1):
            if len(text) >= length and text[place - length : place] == text[len(text) - length :]:
                going_on = list(text)
                for i in range(num_drafts):
                    going_on.append(going_on[place + i])
                return going_on[len(text) :]
    return []


@pytest.mark.parametrize("alphabet", [1, 2, 3, 8, 60])
@pytest.mark.parametrize("lengths", [(1, 4), (2, 3), (1, 1), (3, 16)])
def test_it_finds_what_a_search_finds(alphabet: int, lengths: tuple[int, int]) -> None:
    """Also where the text outgrows the room that was reserved."""
    settings = NgramSettings(*lengths)
    found = 0
    for seed in range(8):
        rng = random.Random(seed)
        history = [rng.randrange(10, 10 + alphabet) for _ in range(rng.choice([0, 1, 5, 60]))]
        num_drafts = rng.choice([1, 3, 8])
        text = Text(history, num_drafts, settings=settings)
        for _ in range(60):
            new = [rng.randrange(10, 10 + alphabet) for _ in range(rng.randint(1, num_drafts + 1))]
            history += new
            wanted = rng.randint(0, num_drafts)
            expected = oracle(history, wanted, settings)
            assert text.commit(new, wanted) == expected
            found += bool(expected)
    assert found > 0


def test_a_long_text() -> None:
    rng = random.Random(1)
    history = [rng.randrange(40) for _ in range(33_000)]
    text = Text(history, 8)
    for _ in range(50):
        start = rng.randrange(len(history) - 20)
        for new in (history[start : start + 2], history[start + 2 : start + 9]):
            history = history + new
            assert text.commit(new) == oracle(history, 8, NgramSettings())


def test_the_latest_place_counts_and_repetition_goes_on() -> None:
    text = Text([10, 11, 12, 10, 11, 13, 10])
    assert text.commit([11]) == [13, 10, 11, 13]
    assert Text([20, 21, 20]).commit([21]) == [20, 21, 20, 21]
    assert Text([20, 21, 22]).commit([23]) == []


def test_the_grammar_chooses_the_place() -> None:
    """An earlier place, where the latest goes on with what the grammar refuses."""
    guide = Guide.regex("(ab|a|abc)*c")
    prompt = [A, B, C, A, B, 40, 41, A, 42]
    assert Text(prompt, guide=guide, guided=False).commit([A]) == [42, A, 42, A]
    assert Text(prompt, guide=guide).commit([A]) == [B, C, A, B]


def test_the_grammar_cuts() -> None:
    guide = Guide.regex("(ab|a|abc)*c")
    prompt = [A, B, A, 40, 41]
    assert Text(prompt, guide=guide, guided=False).commit([A]) == [40, 41, A, 40]
    assert Text(prompt, guide=guide).commit([A]) == [B, A]
    assert Text([A, 40], guide=guide).commit([A]) == []
    assert Text([A, 40], guide=None).commit([A]) == [40, A, 40, A]


def test_only_a_few_places_are_tried() -> None:
    guide = Guide.regex("(ab|a|abc)*c")
    prompt = [A, B, *[A, 40] * 3]
    assert Text(prompt, guide=guide, settings=NgramSettings(candidates=3)).commit([A]) == []
    assert Text(prompt, guide=guide, settings=NgramSettings(candidates=4)).commit([A]) == [B, A]


def test_guiding_can_be_switched() -> None:
    text = Text([A, B, A, 40, A, 40], guide=Guide.regex("(ab|a|abc)*c"))
    assert text.commit([A]) == [B, A]
    text.proposals.set_guided(False)
    assert text.commit([A])[:2] == [A, A]
    text.proposals.set_guided(True)
    assert text.commit([A, B]) == [A]


def test_settings_that_make_no_sense() -> None:
    for settings, message in [
        (NgramSettings(0, 4), "1 to 16"),
        (NgramSettings(3, 2), "1 to 16"),
        (NgramSettings(1, 17), "1 to 16"),
        (NgramSettings(candidates=0), "1 to 32 places"),
    ]:
        with pytest.raises(InputError, match=message):
            Text([], settings=settings)
    with pytest.raises(ValueError, match="slot 2 is out of range"):
        Text([]).proposals.open(2, [])

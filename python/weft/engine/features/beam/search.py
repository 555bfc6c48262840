"""Beam search on the host: which continuations live on, which are done, and when no better can come.

A search begins with one beam, the bare prompt. In every step each living beam offers its likeliest continuations. They
are looked at best first, until as many were found that go on as the step is wide: those are the beams of the next step.
What ends on the way is an answer, if it is among the best `width`; where no token may follow, so is what would go on.
Log-probabilities are sums; an answer's score is its sum over its length to the power of the length penalty. Nothing
here knows of tensors, pages or grammars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.core import BeamTrace, FinishReason, Hypothesis
from weft.core.beam_params import BeamParams
from weft.core.request import BeamWords

Continuation = tuple[int, float]
"""A token and the logarithm of its probability after a beam."""


@dataclass(frozen=True)
class BeamEnds:
    """What ends an answer: `room` tokens; one of `end_tokens`; a stop word, or one of `stop_tokens`, that is not among
    the first `min_tokens`."""

    room: int
    end_tokens: frozenset[int]
    stop_tokens: frozenset[int] = frozenset()
    min_tokens: int = 0


@dataclass(frozen=True)
class Beam:
    """A text that is searched on from. `path[i]` is the number of the beam that its token i continued."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    cum_log_prob: float = 0.0
    path: list[int] = field(default_factory=list)
    words: BeamWords | None = None

    @property
    def parent(self) -> int:
        """The number of the beam, a step before, that it continues."""
        return self.path[-1]


class BeamSearch:
    """One request's search. `beams` are those that live, best first; `answers` those that are done, best first. All of
    them carry the `trace`."""

    def __init__(
        self,
        params: BeamParams,
        ends: BeamEnds,
        words: BeamWords | None = None,
        trace: BeamTrace | None = None,
    ) -> None:
        self.params = params
        self.ends = ends
        self.trace = trace
        self.beams = [Beam(words=words)]
        self.answers: list[Hypothesis] = []
        self.is_done = False

    @property
    def num_needed(self) -> int:
        """How many continuations each beam must offer: the likeliest, so many that `width` of them do not end. Stop
        words may end any; as many more are offered then, which is not always enough: then fewer beams live on."""
        ending = len(self.ends.end_tokens | self.ends.stop_tokens)
        return self.params.width * (1 if self.beams[0].words is None else 2) + ending

    def advance(self, offers: Sequence[Sequence[Continuation]]) -> list[tuple[int, Hypothesis]]:
        """One step. `offers[b]` are beam b's continuations, the likeliest first; impossible ones are left out.

        Returns the answers that came about, each with the number of the beam that it continues. Afterwards the
        search is done, or there are beams.
        """
        params = self.params
        width = params.width_after(len(self.beams[0].token_ids))
        beams: list[Beam] = []
        found: list[tuple[int, Hypothesis]] = []
        going_on = 0
        for place, (parent, token, log_prob) in enumerate(self._ranked(offers)):
            if going_on == width:
                break
            extended = self._extend(parent, token, log_prob)
            if isinstance(extended, Beam):
                beams.append(extended)
                going_on += 1
            elif extended.finish_reason == "length":
                found.append((parent, extended))
                going_on += 1
            elif place < params.width:
                found.append((parent, extended))
        self.beams = beams
        self.answers = sorted([*self.answers, *(a for _, a in found)], key=lambda a: -a.score)[: params.width]
        self.is_done = not self._may_improve()
        return [
            (parent, answer) for parent, answer in found if any(answer is other for other in self.answers)
        ]

    def best(self) -> list[Hypothesis]:
        """The best answers, as many as are wanted; before the search is done also what its beams are so far."""
        living = [] if self.is_done else [self._hypothesis(beam) for beam in self.beams if beam.token_ids]
        ranked = sorted([*self.answers, *living], key=lambda hypothesis: -hypothesis.score)
        return ranked[: self.params.num_answers]

    def _ranked(self, offers: Sequence[Sequence[Continuation]]) -> list[tuple[int, int, float]]:
        """Every continuation as (beam, token, log-probability), the best first."""
        rate = self.params.diversity_rate
        ranked = [
            (beam.cum_log_prob + log_prob + rate * parent, parent, token, log_prob)
            for parent, (beam, offer) in enumerate(zip(self.beams, offers, strict=True))
            for token, log_prob in offer
        ]
        ranked.sort(key=lambda entry: -entry[0])  # stable: of equals the better beam's, the likelier token
        return [(parent, token, log_prob) for _, parent, token, log_prob in ranked]

    def _extend(self, parent: int, token: int, log_prob: float) -> Beam | Hypothesis:
        """The beam with one more token, or the answer if that ends it."""
        old, ends = self.beams[parent], self.ends
        words = old.words.fork() if old.words is not None else None
        beam = Beam(
            [*old.token_ids, token],
            [*old.log_probs, log_prob],
            old.cum_log_prob + log_prob,
            [*old.path, parent],
            words,
        )
        length = len(beam.token_ids)
        word = words.feed(token) if words is not None else None
        if token in ends.end_tokens:
            return self._hypothesis(beam, "stop")
        if length > ends.min_tokens:
            by = token if token in ends.stop_tokens else word
            if by is not None:
                return self._hypothesis(beam, "stop", by)
        return self._hypothesis(beam, "length") if length == ends.room else beam

    def _hypothesis(
        self, beam: Beam, reason: FinishReason | None = None, stopped_by: str | int | None = None
    ) -> Hypothesis:
        score = self.params.score(beam.cum_log_prob, len(beam.token_ids))
        return Hypothesis(
            beam.token_ids,
            beam.log_probs,
            beam.cum_log_prob,
            score,
            reason,
            stopped_by,
            beam.path,
            self.trace,
        )

    def _may_improve(self) -> bool:
        """Whether a further step may change the answers, as `early_stopping` judges it."""
        params = self.params
        if not self.beams:
            return False
        if len(self.answers) < params.width:
            return True
        if params.early_stopping == 1:
            return False
        # A sum can only fall, and is divided by the more the longer the answer becomes.
        length = len(self.beams[0].token_ids) if params.early_stopping == 0 else self.ends.room
        best = max(beam.cum_log_prob for beam in self.beams)
        return params.score(best, length) > self.answers[-1].score

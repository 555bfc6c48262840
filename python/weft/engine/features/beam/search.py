"""Beam search on the host. It decides which continuations become beams, which become answers, and when it is done.

A search starts with one beam, the prompt. In every step, each beam offers its likeliest continuations. The search ranks
all of them, and takes them best first until `width` of them continue: these are the next beams. A continuation that
ends becomes an answer if it ranks among the first `width`. At the length limit, continuations become answers instead of
beams.

A beam's log-probability is the sum over its tokens. An answer's score is this sum divided by its length to the power of
the length penalty. The search handles no tensors, pages or grammars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.core import BeamTrace, FinishReason, Hypothesis
from weft.core.beam_params import BeamParams
from weft.core.request import BeamWords

Continuation = tuple[int, float]
"""A token that may follow a beam, and its log-probability."""


@dataclass(frozen=True)
class BeamEnds:
    """The conditions that end an answer: it has `room` tokens, or it reaches one of `end_tokens`. A stop word, or one
    of `stop_tokens`, also ends it, except within its first `min_tokens` tokens."""

    room: int
    end_tokens: frozenset[int]
    stop_tokens: frozenset[int] = frozenset()
    min_tokens: int = 0


@dataclass(frozen=True)
class Beam:
    """A text that the search continues. `path[i]` is the index of the beam to which token i was appended."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    cum_log_prob: float = 0.0
    path: list[int] = field(default_factory=list)
    words: BeamWords | None = None

    @property
    def parent(self) -> int:
        """The index of the previous step's beam that this beam continues."""
        return self.path[-1]


class BeamSearch:
    """The search of one sequence. `beams` and `answers` are sorted, best first. `trace` holds the tensors of the
    answers."""

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
        """The number of continuations that each beam must offer, so that `width` of them do not end the answer.

        A stop word may end any continuation, so with stop words each beam offers `width` more. If even more of them
        end, fewer beams continue.
        """
        ending = len(self.ends.end_tokens | self.ends.stop_tokens)
        return self.params.width * (1 if self.beams[0].words is None else 2) + ending

    def advance(self, offers: Sequence[Sequence[Continuation]]) -> list[tuple[int, Hypothesis]]:
        """Run one step. `offers[b]` lists the continuations of beam b, likeliest first.

        Returns the new answers, each with the index of the beam that it continued. Unless the search is done
        afterwards, there is at least one beam.
        """
        params = self.params
        width = params.width_after(len(self.beams[0].token_ids))
        beams: list[Beam] = []
        ended: list[tuple[int, Hypothesis]] = []
        num_continued = 0
        for place, (parent, token, log_prob) in enumerate(self._ranked(offers)):
            if num_continued == width:
                break
            extended = self._extend(parent, token, log_prob)
            if isinstance(extended, Beam):
                beams.append(extended)
                num_continued += 1
            elif extended.finish_reason == "length":
                ended.append((parent, extended))
                num_continued += 1
            elif place < params.width:
                ended.append((parent, extended))
        self.beams = beams
        self.answers = sorted([*self.answers, *(a for _, a in ended)], key=lambda a: -a.score)[: params.width]
        self.is_done = not self._may_improve()
        return [
            (parent, answer) for parent, answer in ended if any(answer is other for other in self.answers)
        ]

    def best(self) -> list[Hypothesis]:
        """The best answers, at most as many as the request wants. While the search runs, beams count as answers."""
        living = [] if self.is_done else [self._hypothesis(beam) for beam in self.beams if beam.token_ids]
        ranked = sorted([*self.answers, *living], key=lambda hypothesis: -hypothesis.score)
        return ranked[: self.params.num_answers]

    def _ranked(self, offers: Sequence[Sequence[Continuation]]) -> list[tuple[int, int, float]]:
        """All continuations as (beam, token, log-probability), best first."""
        rate = self.params.diversity_rate
        ranked = [
            (beam.cum_log_prob + log_prob + rate * parent, parent, token, log_prob)
            for parent, (beam, offer) in enumerate(zip(self.beams, offers, strict=True))
            for token, log_prob in offer
        ]
        ranked.sort(key=lambda entry: -entry[0])  # stable: ties keep the order of beams, then of offers
        return [(parent, token, log_prob) for _, parent, token, log_prob in ranked]

    def _extend(self, parent: int, token: int, log_prob: float) -> Beam | Hypothesis:
        """Append a token to a beam. Returns the longer beam, or an answer if the token ends it."""
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
        """Whether the search goes on: whether another step may change the answers, as `early_stopping` defines it."""
        params = self.params
        if not self.beams:
            return False
        if len(self.answers) < params.width:
            return True
        if params.early_stopping == 1:
            return False
        # Compute a bound on future scores. The sum of log-probabilities only falls, but a longer answer divides the
        # negative sum by more.
        length = len(self.beams[0].token_ids) if params.early_stopping == 0 else self.ends.room
        best = max(beam.cum_log_prob for beam in self.beams)
        return params.score(best, length) > self.answers[-1].score

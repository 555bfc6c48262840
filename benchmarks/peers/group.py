"""Measures a group of engines with the same checkpoint, dtype and batch size, with and without guides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from weft.errors import WeftError

from .checkpoints import Checkpoint
from .disturbance import Disturbance
from .judge import tally
from .lineup import Entrant
from .process import SideError, SideProcess
from .prompts import of_round
from .protocol import Answers, Config, Prompt, Request
from .turns import Round, take_turns

WARM = 4
"""The number of tokens that an engine generates before its timed turn. It refills the caches of a process that was
stopped."""

Start = Callable[[Entrant], SideProcess]
Failed = Callable[[Entrant, Exception], None]


@dataclass(frozen=True)
class Plan:
    """The settings of all groups: rounds, batches per turn, minimum prompts per turn, threads, and the tokens of a free
    answer (0: those of the checkpoint)."""

    rounds: int
    waves: int
    least_prompts: int
    threads: int
    free_tokens: int
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """A checkpoint, dtype and batch size, with the prompts for them."""

    checkpoint: Checkpoint
    dtype: str
    batch: int
    prompts: list[Prompt]
    plan: Plan

    @property
    def what(self) -> dict[str, Any]:
        """The columns of the table that identify the group."""
        return {"checkpoint": self.checkpoint.name, "dtype": self.dtype, "batch": self.batch}

    def config(self, entrant: Entrant) -> Config:
        """Return the configuration of an entrant."""
        is_gguf = entrant.engine == "llama.cpp"
        draft = self.checkpoint.draft_gguf(self.dtype) if is_gguf else None
        return Config(
            model=self.checkpoint.reads(self.dtype, entrant.engine),
            dtype=self.dtype,
            batch=self.batch,
            threads=self.plan.threads,
            max_seq_len=self.checkpoint.max_seq_len,
            drafter=entrant.drafter,
            num_drafts=entrant.num_drafts,
            draft=None if draft is None else str(draft),
            options=dict(self.plan.options),
        )

    def request(self, number: int, guided: bool) -> Request:
        """Return the request that every engine answers in a round."""
        count = max(self.plan.least_prompts, self.plan.waves * self.batch)
        free_tokens = self.plan.free_tokens or self.checkpoint.free_tokens
        limit = self.checkpoint.max_tokens if guided else free_tokens
        return Request(of_round(self.prompts, number, count, guided), limit, exact=not guided)


def measure(
    group: Group, entrants: Sequence[Entrant], forms: Sequence[bool], start: Start, failed: Failed
) -> list[dict[str, Any]]:
    """Return a row for each entrant and form (guided or not)."""
    rows: list[dict[str, Any]] = []
    with ExitStack() as open_sides:
        sides = _opened(group, entrants, start, failed, open_sides)
        for guided in forms:
            racing = {e: side for e, side in sides.items() if guided or not e.is_guided_only}
            rows += _race(group, racing, guided, failed)
    return rows


def _opened(
    group: Group, entrants: Sequence[Entrant], start: Start, failed: Failed, stack: ExitStack
) -> dict[Entrant, SideProcess]:
    sides: dict[Entrant, SideProcess] = {}
    for entrant in entrants:
        try:
            config = group.config(entrant)
            side = stack.enter_context(start(entrant))
            side.open(config)
            side.prepare(group.prompts)
        except (SideError, WeftError) as error:
            failed(entrant, error)
        else:
            sides[entrant] = side
    return sides


def _race(
    group: Group, sides: Mapping[Entrant, SideProcess], guided: bool, failed: Failed
) -> list[dict[str, Any]]:
    others: dict[Entrant, list[float]] = {entrant: [] for entrant in sides}

    def turn(entrant: Entrant, side: SideProcess) -> Callable[[int], Answers]:
        def answer(number: int) -> Answers:
            request = group.request(number, guided)
            side.answer(replace(request, prompts=request.prompts[:1], max_tokens=WARM))
            disturbance = Disturbance(side.pid)
            answers = side.answer(request)
            others[entrant].append(disturbance.cores())
            return answers

        return answer

    turns = {entrant: turn(entrant, side) for entrant, side in sides.items()}
    warm = take_turns(turns, 1, failed, SideError, order=list)  # the first use of a shape is slow
    done = take_turns({entrant: turns[entrant] for entrant in warm}, group.plan.rounds, failed, SideError)
    return [
        {
            **group.what,
            "guided": guided,
            **_figures(group, entrant, guided, rounds),
            "cores_of_others": round(median(others[entrant][1:]), 2),
            "versions": sides[entrant].versions,
        }
        for entrant, rounds in done.items()
    ]


def _figures(group: Group, entrant: Entrant, guided: bool, rounds: Sequence[Round]) -> dict[str, Any]:
    judged = [
        tally(group.request(number, guided).prompts, turn.answers)
        for number, each in enumerate(rounds)
        for turn in each.turns
    ]
    return {
        "engine": entrant.engine,
        "drafter": entrant.drafter,
        "K": entrant.num_drafts,
        "rounds_tokens_per_s": [round(each.speed, 2) for each in rounds],
        "rounds_user_tokens_per_s": [round(each.user_speed, 2) for each in rounds],
        "tokens": sum(each.tokens for each in rounds),
        **{key: sum(counts[key] for counts in judged) for key in ("answers", "cut", "invalid")},
    }

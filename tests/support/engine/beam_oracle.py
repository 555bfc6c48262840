"""Beam search as one would write it down: tuples, and every candidate looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from weft.engine.beam_params import BeamParams

Text = tuple[int, ...]
Model = Callable[[Text], list[float]]
"""The log-probability of each token behind a text; -inf is impossible."""


def plain_search(
    model: Model, params: BeamParams, room: int, stops: bool, ends: Collection[int]
) -> list[tuple[float, Text]]:
    """Scores and texts, best first. Where it `stops` early, it does as transformers' code says; else it never does."""
    width = params.width
    beams: list[tuple[float, Text]] = [(0.0, ())]
    answers: list[tuple[float, Text]] = []
    for length in range(1, room + 1):
        candidates = []
        for total, text in beams:
            ranked = sorted(enumerate(model(text)), key=lambda pair: -pair[1])
            candidates += [
                (total + value - params.diversity_rate * rank, total + value, (*text, token))
                for rank, (token, value) in enumerate(ranked)
                if value > -math.inf
            ]
        candidates.sort(key=lambda candidate: -candidate[0])
        ended = [c for c in candidates[:width] if c[2][-1] in ends or length == room]
        answers += [(total / length**params.length_penalty, text) for _, total, text in ended]
        answers = sorted(answers, key=lambda answer: -answer[0])[:width]
        beams = [(total, text) for _, total, text in candidates if text[-1] not in ends][:width]
        if stops and len(answers) == width and beams:
            best = max(total for total, _ in beams)
            reach = room if params.early_stopping > 1 and params.length_penalty > 0 else length
            if params.early_stopping == 1 or best / reach**params.length_penalty <= answers[-1][0]:
                break
        if not beams:
            break
    return answers[: params.num_answers]

"""A straightforward beam search over tuples, which examines every candidate."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from weft.core.beam_params import BeamParams

Text = tuple[int, ...]
Model = Callable[[Text], list[float]]
"""Returns the log-probability of each token after a text. -inf is an impossible token."""


def plain_search(
    model: Model, params: BeamParams, room: int, stops: bool, ends: Collection[int]
) -> list[tuple[float, Text]]:
    """Return scores and texts, best first. With `stops` the search ends early under transformers' conditions, else
    never.

    TensorRT-LLM's rules decide the rest: how candidates are ranked (with a bonus by the beam's number, which does
    not enter the scores), which of them end or continue, and how many do.
    """
    widths = list(params.widths) or [params.width]
    beams: list[tuple[float, Text]] = [(0.0, ())]
    answers: list[tuple[float, Text]] = []
    for length in range(1, room + 1):
        width = widths.pop(0) if len(widths) > 1 else widths[0]
        candidates = [
            (total + value + params.diversity_rate * number, total + value, (*text, token))
            for number, (total, text) in enumerate(beams)
            for token, value in enumerate(model(text))
            if value > -math.inf
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        places = [i for i, (*_, text) in enumerate(candidates) if text[-1] not in ends][:width]
        reach = min(params.width, places[-1] if len(places) == width else len(candidates))
        done = [c for c in candidates[:reach] if c[2][-1] in ends]
        if length == room:
            done, places = done + [candidates[i] for i in places], []
        beams = [candidates[i][1:] for i in places]
        answers += [(total / length**params.length_penalty, text) for _, total, text in done]
        answers = sorted(answers, key=lambda answer: -answer[0])[: params.width]
        if stops and len(answers) == params.width and beams:
            best = max(total for total, _ in beams)
            until = length if params.early_stopping == 0 or params.length_penalty == 0 else room
            if params.early_stopping == 1 or best / until**params.length_penalty <= answers[-1][0]:
                break
        if not beams:
            break
    return answers[: params.num_answers]

"""What an engine's loop does with beam requests: whether they may come in, their slots and pages, their turns."""

from __future__ import annotations

import time
from collections.abc import Sequence

from weft.engine.beam_group import BeamEnding, BeamGroup
from weft.engine.beam_request import BeamRequest
from weft.engine.lifecycle import Request, Stage
from weft.engine.records import TurnRecord
from weft.engine.residents import Residents
from weft.errors import InputError


class BeamTurns:
    """Deals out slots and pages of `residents` to the beam requests of `group`, all they can ever need at once: beams
    are never preempted. The pages of a prompt are found again by others, those of beams are not."""

    def __init__(self, group: BeamGroup, residents: Residents) -> None:
        self._group, self._residents, self._kv = group, residents, residents.kv
        self._active: list[BeamRequest] = []

    def pages_needed(self, request: Request) -> int:
        """Pages that a request holds from its admission to its end."""
        assert isinstance(request, BeamRequest)
        return self._group.pages_needed(request)

    def take(self, request: Request) -> bool:
        """Move a request from QUEUED to CONTEXT, with slots and pages. False: there are not enough; nothing has changed
        then."""
        assert isinstance(request, BeamRequest)
        width, free_slots = request.beam.width, self._residents.free_slots
        if len(free_slots) < width:
            return False
        positions = self.pages_needed(request) * self._kv.page_size
        kv = self._kv.begin(
            request.prompt, positions, retention=request.retention, num_prompt=len(request.prompt)
        )
        if kv is None:
            return False
        request.move(Stage.CONTEXT)
        request.kv, request.slots = kv, [free_slots.pop() for _ in range(width)]
        request.slot = request.slots[0]
        request.started = time.perf_counter()
        self._active.append(request)
        self._residents.active.append(request)
        return True

    def open(self, request: Request) -> None:
        """Let an open request take part in the next turn. Raises what its matcher raises."""
        assert isinstance(request, BeamRequest) and request.kv is not None
        request.output.stats.reused_tokens = request.kv.num_reused
        self._group.start(request, request.slots, request.kv.pages, request.kv.num_reused, request.kv.copies)

    def step(self, turn: TurnRecord) -> list[BeamEnding]:
        """One turn of all that are open; who ended. Prompts that were read can be found by others."""
        if not self._group.has_work:
            return []
        endings = self._group.step(turn)
        for request in self._active:
            if request.stage is Stage.GENERATION and request.kv is not None:
                self._kv.store(request.kv, request.prompt, len(request.prompt))
        return endings

    def leave(self, request: Request) -> None:
        """Take back what an open request holds."""
        assert isinstance(request, BeamRequest) and request.kv is not None
        self._residents.active.remove(request)
        self._group.end(request)
        self._active.remove(request)
        self._residents.free_slots.extend(reversed(request.slots))
        self._kv.end(request.kv)
        request.slot, request.slots, request.kv = -1, [], None

    def close(self) -> None:
        """Let go of graphs."""
        self._group.close()


def width_of(request: Request) -> int:
    """How many beams a request has; 1 for one that is not searched."""
    return request.beam.width if isinstance(request, BeamRequest) else 1


def fits_width(request: Request, active: Sequence[Request]) -> bool:
    """Whether a request may join those that run: all are of one width, and another one waits until they are done."""
    return not active or width_of(active[0]) == width_of(request)


def check_beams(request: Request, max_beam_width: int) -> None:
    """Raise `InputError` for a request that is wider than the engine was made for."""
    width = width_of(request)
    if width > max_beam_width:
        raise InputError(
            f"the beam width is {width}, but this engine searches with {max_beam_width} at most; lower it, or raise "
            "max_beam_width"
        )

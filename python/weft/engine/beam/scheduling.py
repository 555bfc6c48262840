"""What an engine's loop does with beam requests: whether they may come in, what they hold, their turns."""

from __future__ import annotations

from collections.abc import Sequence

from weft.engine.beam.request import BeamRequest
from weft.engine.beam.runner import BeamEnding, BeamGroup
from weft.engine.request import Request, Stage
from weft.engine.scheduling.running import Residents
from weft.engine.stats import TurnRecord
from weft.errors import InputError


class BeamTurns:
    """Beam requests among the residents of an engine, with `Residents`' calls. Each holds a slot for every beam, and
    from its admission on all the pages that its beams may ever need, so none is preempted. Pages of a prompt are found
    again by others, those of beams are not."""

    def __init__(self, group: BeamGroup, residents: Residents) -> None:
        self._group, self._residents = group, residents

    def pages_needed(self, request: Request) -> int:
        """Pages that a request holds from its admission to its end."""
        assert isinstance(request, BeamRequest)
        return self._group.pages_needed(request)

    def take(self, request: Request) -> bool:
        """Give the request its slots and pages. False: there are not enough; nothing has changed then."""
        assert isinstance(request, BeamRequest)
        width, kv, slots = request.beam.width, self._residents.kv, self._residents.free_slots
        if len(slots) < width:
            return False
        positions = self.pages_needed(request) * kv.page_size
        request.kv = kv.begin(request.prompt, positions, retention=request.retention)
        if request.kv is None:
            return False
        request.move(Stage.CONTEXT)
        request.slots = [slots.pop() for _ in range(width)]
        request.slot = request.slots[0]
        request.output.stats.note_scheduled()
        self._residents.active.append(request)
        return True

    def open(self, request: Request) -> None:
        """Let the request take part in the next turn. What this raises is the request's own."""
        assert isinstance(request, BeamRequest) and request.kv is not None
        kv = request.kv
        request.output.stats.reused_tokens = kv.num_reused
        self._group.start(request, request.slots, kv.pages, kv.num_reused, kv.copies)

    def step(self, turn: TurnRecord) -> list[BeamEnding]:
        """One turn of all that are open; who ended."""
        if not self._group.has_work:
            return []
        endings = self._group.step(turn)
        for request in self._residents.active:
            if request.stage is Stage.GENERATION and request.kv is not None:
                self._residents.kv.store(request.kv, request.prompt, len(request.prompt))
        return endings

    def leave(self, request: Request) -> None:
        """The request ends: what it holds is given back. Nothing of it is in flight between two turns."""
        assert isinstance(request, BeamRequest) and request.kv is not None
        self._group.end(request)
        self._residents.active.remove(request)
        self._residents.free_slots.extend(reversed(request.slots))
        self._residents.kv.end(request.kv)
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

"""Requests whose matchers take long to begin and hold much (programs): they wait here until a slot is near.

At most `ahead` of them have begun and have no slot, and all that have begun and not ended may hold `max_bytes` at most.
Where clients share the slots, one more of each that has none ahead: it may get a slot before those of others. They
begin in the order of the queue. Sequences of one request are copies of its first start, which is kept until the last of
them has begun, and counts like one more.

Somebody can always go on: whoever is let in with siblings has room for the copy that is kept and for one sequence, so
that the sequences of the request that came last may run one by one. Where the first that waits does not fit, only such
siblings go before it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from weft.core.request import FieldNames
from weft.engine.scheduling.policy import FairTurns, WaitingQueue
from weft.engine.sequence import Sequence
from weft.errors import CapacityError
from weft.grammar.base import Matcher
from weft.grammar.starts import StartedGuide, Starts

MOST_LOOKED_AT = 256
"""Of those that wait for memory, in one turn, where others hold it."""

Failures = list[tuple[Sequence, BaseException]]


@dataclass(eq=False)
class _Siblings:
    """The sequences of one request that have not begun, and what is kept for them. One starts at a time."""

    guide: StartedGuide
    waiting: dict[Sequence, None] = field(default_factory=dict)
    kept_bytes: int = 0
    is_starting: bool = False


@dataclass(frozen=True, eq=False)
class _Orphan:
    """A start whose request has ended. It can't be stopped, and holds its bytes until it is over."""

    siblings: _Siblings
    started: Future[Matcher]
    num_bytes: int


class Programs:
    """Begins matchers ahead, in `starts`' threads. All methods are the engine thread's; `on_started` is called by
    others, and set by what wakes the engine. The order of `turns` is that of the queue. `orphans` are starts whose
    requests have ended."""

    def __init__(
        self, starts: Starts, ahead: int, max_bytes: int, turns: FairTurns, shares: bool = False
    ) -> None:
        self.held_bytes = 0
        self.on_started: Callable[[], object] = lambda: None
        self._starts, self._most_ahead, self._max_bytes, self._shares = starts, ahead, max_bytes, shares
        self._waiting = WaitingQueue(turns)
        self._siblings: dict[StartedGuide, _Siblings] = {}
        self._starting: dict[Sequence, Future[Matcher]] = {}
        self.orphans: list[_Orphan] = []
        self._ahead: set[Sequence] = set()
        self._held: dict[Sequence, int] = {}
        self._has_changed = False

    def __len__(self) -> int:
        """Requests that have not begun."""
        return len(self._waiting) + len(self._starting)

    @property
    def has_news(self) -> bool:
        """Whether `collect` might change something."""
        return (
            (self._has_changed and len(self._waiting) > 0)
            or any(started.done() for started in self._starting.values())
            or any(orphan.started.done() for orphan in self.orphans)
        )

    def add(self, sequence: Sequence) -> None:
        """A request whose guide is a `StartedGuide`. Siblings are added before the next `collect`."""
        self._waiting.add(sequence)
        guide = _guide(sequence)
        self._siblings.setdefault(guide, _Siblings(guide)).waiting[sequence] = None
        self._has_changed = True

    def collect(self) -> tuple[list[Sequence], Failures]:
        """Let those begin for whom there is room. Gives those that have begun, and those that failed to, and why."""
        ready, failed = self._take_started()
        failed += self._begin()
        return ready, failed

    def admit(self, sequence: Sequence) -> None:
        """A request got a slot."""
        if sequence in self._ahead:
            self._ahead.remove(sequence)
            self._has_changed = True

    def forget(self, sequence: Sequence) -> None:
        """A request ends, wherever it is."""
        compiled = sequence.guide.compiled if sequence.guide is not None else None
        if not isinstance(compiled, StartedGuide):
            return
        siblings = self._siblings.get(compiled)
        num_bytes = self._held.pop(sequence, 0)
        self.held_bytes -= num_bytes
        self._ahead.discard(sequence)
        self._has_changed = True
        if siblings is None:
            return
        if sequence in siblings.waiting:
            self._waiting.remove(sequence)
            del siblings.waiting[sequence]
        started = self._starting.pop(sequence, None)
        if started is not None:
            if started.cancel():
                siblings.is_starting = False
            else:
                self.orphans.append(_Orphan(siblings, started, num_bytes))
                self.held_bytes += num_bytes
        self._settle(siblings)

    def close(self) -> None:
        """Begin no more."""
        self._starts.close()

    def _take_started(self) -> tuple[list[Sequence], Failures]:
        ready: list[Sequence] = []
        failed: Failures = []
        for orphan in [one for one in self.orphans if one.started.done()]:
            self.orphans.remove(orphan)
            self.held_bytes -= orphan.num_bytes
            self._end_start(orphan.siblings)
        for sequence in [r for r, started in self._starting.items() if started.done()]:
            started = self._starting.pop(sequence)
            self._end_start(self._siblings[_guide(sequence)])
            error = started.exception()
            if error is not None:
                failed.append((sequence, error))
                continue
            assert sequence.guide is not None
            sequence.guide.matcher = started.result()
            ready.append(sequence)
        return ready, failed

    def _begin(self) -> Failures:
        if not self._has_changed or not len(self._waiting):
            return []
        self._has_changed = False
        begun: list[tuple[Sequence, bool]] = []
        failed: Failures = []
        is_open, num_passed = True, 0
        clients = {sequence.request.client_id for sequence in self._ahead} if self._shares else set()
        for sequence in self._waiting:
            is_full = len(self._ahead) >= self._most_ahead
            if (is_full and not self._shares) or (num_passed >= MOST_LOOKED_AT and self._held):
                break
            if is_full and sequence.request.client_id in clients:
                num_passed += 1
                continue
            siblings = self._siblings[_guide(sequence)]
            if siblings.is_starting:
                num_passed += 1
                continue
            own, kept = self._needs(sequence, siblings)
            if own + kept > self._max_bytes:
                failed.append((sequence, self._too_large(own + kept, sequence.request.names)))
                continue
            more = own + kept - siblings.kept_bytes
            if self.held_bytes + more > self._max_bytes or not (is_open or siblings.kept_bytes):
                is_open, num_passed = False, num_passed + 1
                continue
            self.held_bytes += more
            self._held[sequence], siblings.kept_bytes, siblings.is_starting = own, kept, True
            self._ahead.add(sequence)
            clients.add(sequence.request.client_id)
            begun.append((sequence, not kept))
        for sequence, is_last in begun:
            self._waiting.remove(sequence)
            del self._siblings[_guide(sequence)].waiting[sequence]
            started = self._starts.begin(partial(_guide(sequence).begin, is_last=is_last))
            self._starting[sequence] = started
            started.add_done_callback(self._tell)
        return failed

    def _needs(self, sequence: Sequence, siblings: _Siblings) -> tuple[int, int]:
        """Bytes that a request may hold, and that stay with its siblings when it begins."""
        each = _guide(sequence).sequence_bytes
        # A beam's copy is made before the one that it takes the place of is gone.
        own = each * (sequence.request.beam.width + 1 if sequence.request.beam is not None else 1)
        return own, each if len(siblings.waiting) > 1 else 0

    def _end_start(self, siblings: _Siblings) -> None:
        siblings.is_starting = False
        self._has_changed = True
        self._settle(siblings)

    def _settle(self, siblings: _Siblings) -> None:
        """Where nobody is left to begin, nothing is kept for it."""
        if not siblings.waiting and not siblings.is_starting:
            siblings.guide.drop()
            self.held_bytes -= siblings.kept_bytes
            del self._siblings[siblings.guide]

    def _tell(self, _: object) -> None:
        self.on_started()

    def _too_large(self, needed: int, names: FieldNames) -> CapacityError:
        return CapacityError(
            f"the request's program may hold {needed} bytes, of itself, copies and what is kept to take tokens back, "
            f"but max_program_bytes is {self._max_bytes}; lower WasmLimits.memory_bytes or "
            f"undo_bytes{names.or_raise('max_program_bytes')}"
        )


def _guide(sequence: Sequence) -> StartedGuide:
    assert sequence.guide is not None and isinstance(sequence.guide.compiled, StartedGuide)
    return sequence.guide.compiled

"""Random texts that begin, are read and end, on a manager of pages and on its replay: both must say the same."""

from __future__ import annotations

import random
from dataclasses import dataclass

from support.engine.kv_replay import Begun, Event, Known, Replay, Text
from weft.engine.kv.cache import Keeping, KvManager, KvSequence, Retention, RetentionRange
from weft.engine.kv.events import (
    KvEventLog,
    PagesCreated,
    PagesRemoved,
    PagesStored,
    PageUpdated,
)
from weft.engine.kv.moves import MoveKind
from weft.engine.kv.prefix_tree import CachedPage

SALTS = [None, None, "a", "b"]
TUNES = [tuple(map(int, text)) for text in ("0" * 24, "01" * 12, "0001" * 6, "0" * 5 + "1" * 19)]
Content = tuple[str | None, Text] | None


@dataclass(eq=False)
class Reader:
    """A sequence of the manager, beside its replay, and how much of its text is valid."""

    sequence: KvSequence
    begun: Begun
    salt: str | None
    text: Text
    num_valid: int


class Traffic:
    """What the pages of both tiers hold is simulated; moves are made late, right before something is written."""

    def __init__(self, draw: random.Random, size: int, partial: bool, copies: bool) -> None:
        self.draw = draw
        num_pages, num_host = draw.choice([5, 9, 15]), draw.choice([0, 1, 3, 8, 20])
        self.replay = Replay(
            size, num_pages, num_host, draw.choice([0, 30, 35, 36]), partial=partial, copies=copies
        )
        self.log = KvEventLog(1 << 20, 99)
        keeping = Keeping(num_host, self.replay.least, self.log, lambda: self.replay.now)
        self.manager = KvManager(
            num_pages + 1, size, partial_reuse=partial, copy_on_partial_reuse=copies, keeping=keeping
        )
        assert self.log.get_latest_events()[0].data == PagesCreated((num_pages, num_host))
        self.running: list[Reader] = []
        self.device: dict[tuple[int, int], Content] = {}
        self.host: dict[tuple[int, int], Content] = {}
        self.handed_out: set[int] = set()
        self.num_events = 1

    def step(self) -> None:
        """One thing happens, on both sides."""
        match self.draw.choices(["begin", "read", "end", "wait", "move"], [5, 8, 4, 1, 2])[0]:
            case "begin":
                self.begin()
            case "wait":
                self.replay.now += self.draw.choice([0.5, 1.0, 3.0])
            case "move":
                self.make_moves()
            case "read" if self.running:
                self.read(self.draw.choice(self.running))
            case "end" if self.running:
                self.end(self.draw.choice(self.running))

    def begin(self) -> None:
        draw, size = self.draw, self.replay.size
        text = draw.choice(TUNES)[: draw.randint(1, 14)] + tuple(
            draw.choices([0, 1], k=draw.choice([0, 0, 1, 3]))
        )
        text = text[: self.replay.num_pages * size]
        positions = min(len(text) + draw.randint(0, 4), self.replay.num_pages * size)
        salt, margin, reuse = draw.choice(SALTS), draw.choice([0, 0, 0, 1, 3]), draw.random() < 0.9
        retention = some_retention(draw) if draw.random() < 0.5 else None
        shared = set(self.device_pages())
        sequence = self.manager.begin(
            text, positions, margin=margin, reuse=reuse, retention=retention, salt=salt
        )
        begun = self.replay.begin(text, positions, salt, margin, reuse, retention)
        assert (sequence is None) == (begun is None)
        if sequence is None or begun is None:
            return
        assert sequence.num_reused == begun.num_reused
        assert len(sequence.pages) == begun.running.num_pages
        counts, num_read = sequence.counts, -(-len(text) // size)
        assert (counts.allocated, counts.missed) == (begun.allocated, begun.missed)
        assert counts.reused == -(-begun.num_reused // size)
        fresh = [page for page in sequence.pages[:num_read] if page not in shared]
        assert counts.new == sum(page not in self.handed_out for page in fresh)
        self.handed_out |= set(sequence.pages)
        self.running.append(Reader(sequence, begun, salt, text, begun.num_reused))

    def read(self, reader: Reader) -> None:
        """Read or decode some positions, write drafts behind them that come to nothing, and store what is full."""
        count, junk = self.draw.randint(1, 9), self.draw.randint(0, 2)
        stop, size = reader.num_valid + count, self.replay.size
        grown = self.manager.grow(reader.sequence, stop + junk)
        assert grown == self.replay.grow(reader.begun.running, stop + junk)
        if not grown:
            return
        self.handed_out |= set(reader.sequence.pages)
        self.make_moves()
        while len(reader.text) < stop:
            reader.text += (reader.text[-1],)
        found = set(self.device_pages())
        for position in range(reader.num_valid, stop + junk):
            page = reader.sequence.pages[position // size]
            assert page not in found, "a page that can be found is written"
            is_valid = position < stop
            content = (reader.salt, reader.text[: position + 1]) if is_valid else None
            self.device[page, position % size] = content
        reader.num_valid = stop
        if self.draw.random() < 0.7:
            self.manager.store(reader.sequence, reader.text, stop)
            self.replay.note_stored(self.replay.store(reader.begun.running, reader.text, stop))

    def end(self, reader: Reader) -> None:
        self.running.remove(reader)
        valid = reader.num_valid if self.draw.random() < 0.8 else 0
        self.manager.end(reader.sequence, reader.text if valid else (), valid)
        self.replay.end(reader.begun.running, reader.text, valid)

    def make_moves(self) -> None:
        for kind, source, target in self.manager.take_moves():
            origin = self.host if kind is MoveKind.ONBOARD else self.device
            goal = self.host if kind is MoveKind.OFFLOAD else self.device
            for offset in range(self.replay.size):
                goal[target, offset] = origin.get((source, offset))

    # What must hold

    def check(self) -> None:
        self.manager.check()
        usage, replay = self.manager.usage(), self.replay
        assert usage.free_pages == replay.available
        assert usage.host_pages == sum(page.on_host for page in replay.known) <= replay.num_host
        assert self.kept() == {(p.salt, p.text): (p.on_host, self.holders(p)) for p in replay.known}
        self.log.flush()
        events = self.log.get_latest_events(0)
        assert [event.id for event in events] == list(range(self.num_events, self.num_events + len(events)))
        self.num_events += len(events)
        told, expected = [in_words(event.data) for event in events], merged(replay.events)
        assert told == expected
        replay.events.clear()
        if not self.manager.moves:
            self.check_contents()

    def check_contents(self) -> None:
        size = self.replay.size
        for reader in self.running:
            for position in range(reader.num_valid):
                page = reader.sequence.pages[position // size]
                assert self.device[page, position % size] == (reader.salt, reader.text[: position + 1])
        for (salt, text), page in self.pages().items():
            start = (len(text) - 1) // size * size
            tier = self.host if page.is_on_host else self.device
            for position in range(start, len(text)):
                assert tier[page.number, position - start] == (salt, text[: position + 1])

    def kept(self) -> dict[tuple[str | None, Text], tuple[bool, int]]:
        return {key: (page.is_on_host, page.holders) for key, page in self.pages().items()}

    def holders(self, page: Known) -> int:
        return len(page.readers)

    def device_pages(self) -> list[int]:
        """Pages of the device that can be found."""
        return [page.number for page in self.pages().values() if not page.is_on_host]

    def pages(self) -> dict[tuple[str | None, Text], CachedPage]:
        """Every page that can be found, by its salt and the text that it ends."""
        from weft.engine.kv.cache import number_of_salt

        salts = {number_of_salt(salt): salt for salt in SALTS}
        root = self.manager._pool.root
        found: dict[CachedPage, tuple[str | None, Text]] = {}
        for page in root.descendants():
            if page.parent is root:
                found[page] = (salts[page.salt], page.tokens)
            else:
                assert page.parent is not None
                salt, text = found[page.parent]
                found[page] = (salt, text + page.tokens)
        return {key: page for page, key in found.items()}


def some_retention(draw: random.Random) -> Retention:
    def wish() -> tuple[int, float | None]:
        return draw.choice([0, 32, 35, 100]), draw.choice([None, 0.0, 2.0, 5.0])

    cut = draw.randint(1, 8)
    ranges = (RetentionRange(0, cut, *wish()), RetentionRange(cut, None, *wish()))
    return Retention(ranges[: draw.randint(0, 2)], *wish())


def in_words(data: object) -> Event:
    """An event as the replay writes it."""
    match data:
        case PagesStored(parent, pages):
            return (
                "stored",
                parent,
                *((page.hash, page.tokens, page.level, page.priority) for page in pages),
            )
        case PagesRemoved(hashes):
            return ("removed", *sorted(hashes))
        case PageUpdated(page, level, None) if level is not None:
            return ("level", page, level.old, level.new)
        case PageUpdated(page, None, priority) if priority is not None:
            return ("priority", page, priority.old, priority.new)
    raise AssertionError(data)


def merged(events: list[Event]) -> list[Event]:
    """With removals that follow each other as one event."""
    told: list[Event] = []
    for event in events:
        if event[0] == "removed" and told and told[-1][0] == "removed":
            told[-1] = ("removed", *sorted([*told[-1][1:], *event[1:]]))  # type: ignore[type-var]
        else:
            told.append(event)
    return told

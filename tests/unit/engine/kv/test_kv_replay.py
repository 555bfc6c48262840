"""Pages of both tiers, salts, ended texts, priorities and events against a plain replay, under random traffic."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from hashlib import blake2b, sha256

import pytest

from weft.core.retention import Retention, RetentionRange
from weft.engine.kv.cache import KvManager, KvSequence
from weft.engine.kv.events import (
    KvEventLog,
    PagesCreated,
    PagesRemoved,
    PagesStored,
    PageUpdated,
)
from weft.engine.kv.pool import MoveKind
from weft.engine.kv.prefix_tree import CachedPage

# -- What becomes of pages in two tiers, replayed with texts instead of pages: every rule by looking at everything

Text = tuple[int, ...]
Event = tuple[object, ...]


@dataclass(eq=False)
class Known:
    """A page that can be found: the one that `text` ends in, of those with this salt."""

    salt: str | None
    text: Text
    on_host: bool = False
    readers: list[Running] = field(default_factory=list)
    doubles: list[Running] = field(default_factory=list)  # who wrote the same, while others read it
    is_pinned: bool = False
    priority: int = 35
    duration: float | None = None
    expires: float | None = None
    released: int = 0

    @property
    def is_held(self) -> bool:
        return bool(self.readers) or self.is_pinned


@dataclass(eq=False)
class Running:
    salt: str | None
    num_prompt: int
    retention: Retention | None
    num_pages: int
    chain: list[Known] = field(default_factory=list)


@dataclass(frozen=True)
class Begun:
    """What a sequence that begins must be told: how it gets the part of a page is "copied", "taken over" or ""."""

    running: Running
    num_reused: int
    allocated: int
    missed: int
    part: str


@dataclass
class Replay:
    """`size` positions a page, `num_pages` of the device without page 0, `num_host` of the host."""

    size: int
    num_pages: int
    num_host: int
    least: int = 30
    partial: bool = True
    copies: bool = True
    now: float = 0.0
    known: list[Known] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    stamp: int = 0

    # What can be asked

    @property
    def available(self) -> int:
        return self.free + sum(not (page.on_host or page.is_held) for page in self.known)

    @property
    def free(self) -> int:
        """Pages of the device that nobody holds and that keep nothing."""
        own = sum(running.num_pages - len(running.chain) for running in self.running)
        found = sum(1 + len(page.doubles) for page in self.known if not page.on_host)
        return self.num_pages - own - found

    def children(self, parent: Known | None, salt: str | None) -> list[Known]:
        begins, text = (len(parent.text), parent.text) if parent is not None else (0, ())
        return [
            page
            for page in self.known
            if page.salt == salt and self.start(page) == begins and page.text[:begins] == text
        ]

    def start(self, page: Known) -> int:
        return (len(page.text) - 1) // self.size * self.size

    def parent(self, page: Known) -> Known | None:
        above = page.text[: self.start(page)]
        return next((other for other in self.known if (other.salt, other.text) == (page.salt, above)), None)

    # What happens

    def begin(
        self,
        text: Text,
        positions: int,
        salt: str | None,
        margin: int,
        reuse: bool,
        retention: Retention | None,
    ) -> Begun | None:
        chain: list[Known] = []
        while reuse:
            whole = text[: (len(chain) + 1) * self.size]
            below = [page for page in self.children(chain[-1] if chain else None, salt) if page.text == whole]
            if len(whole) < (len(chain) + 1) * self.size or not below:
                break
            chain += below
        matched, source = len(chain) * self.size, None
        if reuse and self.partial:
            source = self.nearest(text, chain, salt)
            if source is not None:
                matched = common(source.text, text)
                chain.append(source)
        reused = max(min(matched, len(text) - 1) - margin, 0)
        num_shared, part = divmod(reused, self.size)
        shared = chain[:num_shared]
        source = chain[num_shared] if part and self.partial else None
        on_host = [page for page in shared if page.on_host]
        short = -(-positions // self.size) - num_shared + len(on_host)
        room = self.available - sum(not (page.on_host or page.is_held) for page in shared)
        if short > room:
            return None
        running = Running(salt, len(text), retention, 0)
        for page in shared:
            self.lapse(page)
            if page.on_host:
                page.is_pinned = True
            else:
                page.readers.append(running)
        how = self.part(source, text, short, room)
        num_read, taken = -(-len(text) // self.size), short
        if source is not None and how == "taken over" and not source.on_host:
            self.forget(source)
            taken -= 1
            self.take(taken, reserved=1)
        elif source is not None and how:
            self.lapse(source)
            source.is_pinned = True
            self.take(taken)
            source.is_pinned = False
            if how == "taken over":
                self.forget(source)
            else:
                self.release(source)
        else:
            self.take(taken)
        for page in on_host:
            self.events.append(("level", self.hash(page), 1, 0))
            page.is_pinned, page.on_host = False, False
            page.readers.append(running)
        running.chain, running.num_pages = list(shared), -(-positions // self.size)
        self.running.append(running)
        for page in shared:
            self.ask(running, page)
        reused = num_shared * self.size + (part if how else 0)
        found = -(-reused // self.size)
        allocated = num_read - num_shared + len(on_host) - (short - taken)
        return Begun(running, reused, allocated, num_read - found if reuse else 0, how)

    def nearest(self, text: Text, chain: list[Known], salt: str | None) -> Known | None:
        """Of the pages that come next, one that goes on like the text for as long as any does; of several the last that
        stands before the text in the alphabet, or else the first."""
        start = len(chain) * self.size
        others = self.children(chain[-1] if chain else None, salt)
        longest = max((common(page.text, text) for page in others), default=0)
        best = sorted((p for p in others if common(p.text, text) == longest), key=lambda p: p.text)
        before = [page for page in best if page.text < text[: start + self.size]]
        return (before[-1] if before else best[0]) if longest > start else None

    def part(self, source: Known | None, text: Text, short: int, room: int) -> str:
        if source is None:
            return ""
        ended = len(source.text) % self.size != 0 and text[: len(source.text)] == source.text
        unneeded = not source.is_held and not [page for page in self.known if self.parent(page) is source]
        can_copy = self.copies and (source.on_host or short + (not source.is_held) <= room)
        if unneeded and (ended or not can_copy):
            return "taken over"
        return "copied" if can_copy else ""

    def grow(self, running: Running, positions: int) -> bool:
        more = -(-positions // self.size) - running.num_pages
        if more > self.available:
            return False
        if more > 0:
            self.take(more)
            running.num_pages += more
        return True

    def store(self, running: Running, text: Text, valid: int) -> list[Known]:
        new: list[Known] = []
        for stop in range((len(running.chain) + 1) * self.size, valid + 1, self.size):
            below = self.children(running.chain[-1] if running.chain else None, running.salt)
            same = [page for page in below if page.text == text[:stop]]
            if not same:
                new.append(self.add(running, text[:stop], below))
            elif same[0].on_host:
                self.lapse(same[0])
                same[0].on_host, same[0].readers = False, [running]
                self.events.append(("level", self.hash(same[0]), 1, 0))
            elif same[0].is_held:
                same[0].doubles.append(running)
            else:
                self.lapse(same[0])
                same[0].readers.append(running)
            page = same[0] if same else new[-1]
            running.chain.append(page)
            self.ask(running, page, is_new=not same)
        return new

    def end(self, running: Running, text: Text, valid: int) -> None:
        new = self.store(running, text, valid)
        last, stop = None, len(running.chain) * self.size
        below = self.children(running.chain[-1] if running.chain else None, running.salt)
        ended = text[:valid]
        if self.partial and stop < valid and not [p for p in below if p.text[:valid] == ended]:
            last = self.add(running, ended, below)
            self.ask(running, last, is_new=True)
            new.append(last)
        self.note_stored(new)
        self.running.remove(running)
        for page in running.chain + ([last] if last is not None else []):
            (page.readers if running in page.readers else page.doubles).remove(running)
            if not page.readers and page.doubles:
                page.readers.append(page.doubles.pop())
            elif not page.readers:
                self.release(page)

    # Parts of it

    def add(self, running: Running, text: Text, below: list[Known]) -> Known:
        for page in below:
            if page.text == text[: len(page.text)]:
                self.forget(page)
        page = Known(running.salt, text, readers=[running])
        self.known.append(page)
        return page

    def ask(self, running: Running, page: Known, is_new: bool = False) -> None:
        wish = running.retention and running.retention.at(self.start(page), running.num_prompt)
        if wish:
            if wish[0] != page.priority and not is_new:
                self.events.append(("priority", self.hash(page), page.priority, wish[0]))
            page.priority, page.duration = wish

    def lapse(self, page: Known) -> None:
        if page.expires is not None and page.expires <= self.now:
            page.priority, page.duration = 35, None
        page.expires = None

    def release(self, page: Known) -> None:
        self.stamp += 1
        page.released = self.stamp
        page.expires = None if page.duration is None else self.now + page.duration

    def first(self, on_host: bool) -> Known | None:
        """The page of a tier that goes first."""
        leaves = [
            page
            for page in self.known
            if page.on_host == on_host
            and not page.is_held
            and not [p for p in self.known if p.on_host == on_host and self.parent(p) is page]
        ]
        return min(leaves, key=lambda page: (self.priority(page), page.released), default=None)

    def priority(self, page: Known) -> int:
        return 35 if page.expires is not None and page.expires <= self.now else page.priority

    def take(self, count: int, reserved: int = 0) -> None:
        """`reserved` pages are the taker's already."""
        while self.free - reserved < count:
            page = self.first(on_host=False)
            assert page is not None
            target = self.host_room()
            if self.num_host and self.priority(page) >= self.least and target is not None:
                self.events.append(("level", self.hash(page), 0, 1))
                if target:
                    self.forget(target[0])
                page.on_host = True
            else:
                self.forget(page)

    def host_room(self) -> list[Known] | None:
        """What must go from the host for one page more; None where nothing can."""
        if sum(page.on_host for page in self.known) < self.num_host:
            return []
        first = self.first(on_host=True)
        return None if first is None else [first]

    def forget(self, page: Known) -> None:
        gone = [p for p in self.known if p.salt == page.salt and p.text[: len(page.text)] == page.text]
        if len(page.text) % self.size:
            gone = [page]
        for each in gone:
            self.known.remove(each)
            self.events.append(("removed", self.hash(each)))

    def note_stored(self, pages: list[Known]) -> None:
        if pages:
            parent = self.parent(pages[0])
            told = [(self.hash(p), p.text[self.start(p) :], int(p.on_host), p.priority) for p in pages]
            self.events.append(("stored", None if parent is None else self.hash(parent), *told))

    def hash(self, page: Known) -> int:
        """The chain of BLAKE2b over parent, salt and tokens, from the text's beginning."""
        name = bytes(8)
        for start in range(0, len(page.text), self.size):
            tokens = page.text[start : start + self.size]
            salt = bytes(32) if start or page.salt is None else sha256(page.salt.encode()).digest()[::-1]
            name = blake2b(
                name + salt + b"".join(struct.pack("<q", token) for token in tokens), digest_size=8
            ).digest()
        return int.from_bytes(name, "little")


def common(some: Text, others: Text) -> int:
    """How many tokens both begin with."""
    length = 0
    while length < min(len(some), len(others)) and some[length] == others[length]:
        length += 1
    return length


# -- Random texts that begin, are read and end, on a manager of pages and on its replay: both must say the same

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
        self.manager = KvManager(
            num_pages + 1,
            size,
            partial_reuse=partial,
            copy_on_partial_reuse=copies,
            num_host_pages=num_host,
            offload_min_priority=self.replay.least,
            log=self.log,
            clock=lambda: self.replay.now,
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


# -- tests


@pytest.mark.parametrize("seed", range(30))
def test_traffic_does_what_the_replay_does(seed: int) -> None:
    traffic = Traffic(random.Random(seed), 2 + seed % 3, partial=seed % 5 != 4, copies=seed % 4 != 3)
    for _ in range(300):
        traffic.step()
        traffic.check()
    while traffic.running:
        traffic.end(traffic.running[0])
        traffic.check()
    traffic.make_moves()
    traffic.check()

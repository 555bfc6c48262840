"""What becomes of pages in two tiers, replayed with texts instead of pages: every rule by looking at everything."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from hashlib import blake2b, sha256

from weft.engine.kv.cache import Retention

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

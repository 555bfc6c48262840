"""The manager of pages against plain bookkeeping, in examples and in long runs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from weft.core.retention import Retention, RetentionRange
from weft.engine.kv.cache import KvManager, KvSequence

# -- The manager of pages beside plain bookkeeping: what pages hold, who may write them, which go first

Text = tuple[int, ...]

TUNES = [tuple(map(int, text)) for text in ("0" * 24, "01" * 12, "0001" * 6, "0" * 5 + "1" * 19)]
TEXTS = st.builds(  # most begin like others, and go on like them or not
    lambda tune, length, tail: TUNES[tune][:length] + tail,
    st.integers(0, len(TUNES) - 1),
    st.integers(1, 12),
    st.sampled_from([(), (), (1,), (0, 1), (1, 1, 0)]),
)
PRIORITIES = st.sampled_from([0, 35, 100])
DURATIONS = st.sampled_from([None, 0.0, 2.0, 5.0])


@st.composite
def retentions(draw: st.DrawFn) -> Retention:
    cut = draw(st.integers(1, 8))
    ranges = [RetentionRange(0, cut, draw(PRIORITIES), draw(DURATIONS))]
    if draw(st.booleans()):
        ranges.append(RetentionRange(cut, None, draw(PRIORITIES), draw(DURATIONS)))
    return Retention(tuple(ranges), draw(PRIORITIES), draw(DURATIONS))


@dataclass(eq=False)
class Running:
    """A sequence, its text so far, how much of that its pages hold, what it stored, and which pages it gave back."""

    sequence: KvSequence
    text: Text
    num_prompt: int
    num_valid: int
    retention: Retention | None
    chain: list[Text] = field(default_factory=list)
    gaps: set[int] = field(default_factory=set)


@dataclass
class Cached:
    """What is known of a text whose last page can be found."""

    priority: int = 35
    duration: float | None = None
    released: int = 0
    expires: float | None = None

    def priority_at(self, now: float) -> int:
        return self.priority if self.expires is None or now < self.expires else 35


def num_common(some: Text, others: Text) -> int:
    return next(
        (i for i, pair in enumerate(zip(some, others, strict=False)) if pair[0] != pair[1]),
        min(len(some), len(others)),
    )


class PagesAreWhatTheyShouldBe(RuleBasedStateMachine):
    """Pages are simulated: position by position the text that was read when its keys and values were written."""

    @initialize(
        num_pages=st.sampled_from([2, 6, 10, 16, 16]),
        size=st.integers(2, 4),
        partial=st.sampled_from([True, True, False]),
        copies=st.booleans(),
    )
    def start(self, num_pages: int, size: int, partial: bool, copies: bool) -> None:
        self.now = 0.0
        self.size, self.partial, self.copies, self.num_pages = size, partial, copies, num_pages
        self.manager = KvManager(
            num_pages,
            size,
            partial_reuse=partial,
            copy_on_partial_reuse=copies,
            clock=lambda: self.now,
        )
        self.running: list[Running] = []
        self.content: dict[tuple[int, int], Text | None] = {}
        self.cached: dict[Text, Cached] = {}
        self.stamp = 0

    # What is asked of the manager

    @rule(
        text=TEXTS,
        more=st.integers(0, 4),
        margin=st.sampled_from([0, 0, 1, 3]),
        reuse=st.sampled_from([True, True, True, False]),
        retention=st.none() | retentions(),
        prompt=st.none() | st.integers(1, 12),
    )
    def begin(
        self,
        text: Text,
        more: int,
        margin: int,
        reuse: bool,
        retention: Retention | None,
        prompt: int | None,
    ) -> None:
        positions = len(text) + more
        if self.manager.pages_needed(positions) > self.num_pages - 1:
            positions = (self.num_pages - 1) * self.size
            text = text[:positions]
        before, stored, available, usage = (
            self.pages_of(),
            set(self.cached),
            self.available(),
            self.manager.usage(),
        )
        held = self.held()
        sequence = self.manager.begin(
            text, positions, margin=margin, reuse=reuse, retention=retention, num_prompt=prompt
        )

        matched = max((num_common(text, known) for known in stored), default=0) if reuse else 0
        if not self.partial:
            matched -= matched % self.size
        wanted = max(min(matched, len(text) - 1) - margin, 0)
        shared = [text[:stop] for stop in range(self.size, wanted + 1, self.size)]
        own = self.manager.pages_needed(positions) - len(shared)
        room = available - sum(known not in held for known in shared)
        assert (sequence is None) == (own > room)
        if sequence is None:
            assert self.pages_of() == before and self.manager.usage() == usage
            return
        assert len(sequence.pages) == self.manager.pages_needed(positions)
        assert sequence.pages[: len(shared)] == [before[known] for known in shared]

        pinned, taken, source = set(shared) | held, own, None
        candidates = (
            [
                known
                for known in stored
                if len(known) == (len(shared) + 1) * self.size and num_common(known, text) >= wanted
            ]
            if wanted % self.size and self.partial
            else []
        )
        if sequence.copies:
            [(page, target)] = sequence.copies
            assert self.copies and target == sequence.pages[len(shared)] and sequence.num_reused == wanted
            source = next(known for known in candidates if before[known] == page)
            pinned.add(source)
            for offset in range(self.size):
                self.content[target, offset] = self.content.get((page, offset))
        elif candidates and sequence.num_reused == wanted:
            gone = next(known for known in candidates if before[known] == sequence.pages[len(shared)])
            assert gone not in held and not self.children(gone), "only what nobody needs is taken out"
            assert not self.copies or own > room - 1
            del self.cached[gone]
            taken -= 1
        else:
            assert sequence.num_reused == len(shared) * self.size
            if candidates:
                assert not (self.copies and own < room)
                assert any(known in held or self.children(known) for known in candidates)
        self.expect_evictions(taken, available - len(stored - held), pinned)
        if source is not None and source not in held:
            self.hold(source)
            self.release(source)
        for known in shared:
            self.hold(known)
        running = Running(
            sequence, text, len(text) if prompt is None else prompt, sequence.num_reused, retention
        )
        for known in shared:
            self.chained(running, known)
        self.running.append(running)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 3), count=st.integers(1, 12), junk=st.integers(0, 2), stores=st.booleans())
    def read(self, which: int, count: int, junk: int, stores: bool) -> None:
        """Read or decode `count` positions, and write drafts that come to nothing behind them."""
        running = self.running[which % len(self.running)]
        stop = running.num_valid + count
        if not self.grown(running, stop + junk):
            return
        while len(running.text) < stop:
            running.text += (running.text[-1],)
        for position in range(running.num_valid, stop):
            self.write(running, position, running.text[: position + 1])
        for position in range(stop, stop + junk):
            self.write(running, position, None)
        running.num_valid = stop
        if stores and not running.gaps:
            self.store(running)
        elif stores:
            self.manager.store(running.sequence, running.text, running.num_valid)

    def store(self, running: Running) -> None:
        available = self.available()
        self.manager.store(running.sequence, running.text, running.num_valid)
        assert self.manager.num_available == available, "storing takes nothing from anybody"
        for stop in range((len(running.chain) + 1) * self.size, running.num_valid + 1, self.size):
            self.hold(running.text[:stop])
            self.chained(running, running.text[:stop])

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 3), sinks=st.integers(0, 2), kept=st.integers(0, 3))
    def release_pages(self, which: int, sinks: int, kept: int) -> None:
        """Full pages after the first `sinks` and before the last `kept` are read no more."""
        running = self.running[which % len(self.running)]
        stop = running.num_valid // self.size - kept
        if sinks >= stop or len(running.chain) > stop:
            return
        self.manager.release_pages(running.sequence, sinks, stop)
        running.gaps |= {*range(sinks, stop)}
        gone, running.chain = running.chain[sinks:], running.chain[:sinks]
        held = self.held()
        for known in gone:
            if known not in held:
                self.release(known)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 3))
    def end(self, which: int) -> None:
        running = self.running.pop(which % len(self.running))
        self.manager.end(running.sequence)
        assert running.sequence.pages == []
        held = self.held()
        for known in running.chain:
            if known not in held:
                self.release(known)

    @rule(seconds=st.sampled_from([1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # What must hold

    @invariant()
    def all_is_well(self) -> None:
        self.manager.check()
        usage = self.manager.usage()
        assert usage.free_pages == self.manager.num_available == self.available()
        assert usage.used_pages + usage.free_pages == usage.max_pages == self.num_pages - 1
        assert usage.cached_pages == len(set(self.cached) - self.held())
        assert set(self.pages_of()) == set(self.cached)
        for running in self.running:
            assert {i for i, page in enumerate(running.sequence.pages) if not page} == running.gaps
            kept = [p for p in range(running.num_valid) if p // self.size not in running.gaps]
            for position in kept:
                assert self.at(running, position) == running.text[: position + 1]
        for known, page in self.pages_of().items():
            start = len(known) - self.size
            for offset in range(self.size):
                assert self.content[page, offset] == known[: start + offset + 1]

    def teardown(self) -> None:
        while getattr(self, "running", []):
            self.end(0)
            self.all_is_well()
        if hasattr(self, "manager"):
            assert self.manager.num_available == self.num_pages - 1
            everything = self.manager.begin([7], (self.num_pages - 1) * self.size)
            assert everything is not None and sorted(everything.pages) == list(range(1, self.num_pages))
            assert self.manager.usage().cached_pages == 0

    # Bookkeeping

    def pages_of(self) -> dict[Text, int]:
        """Every text whose last page can be found, and that page."""
        pages: dict[Text, int] = {}
        texts: dict[object, Text] = {self.manager._pool.root: ()}
        for page in self.manager._pool.root.descendants():
            texts[page] = texts[page.parent] + page.tokens
            pages[texts[page]] = page.number
        return pages

    def available(self) -> int:
        held = {page for running in self.running for page in running.sequence.pages if page}
        return self.num_pages - 1 - len(held)

    def held(self) -> set[Text]:
        return {known for running in self.running for known in running.chain}

    def children(self, text: Text) -> list[Text]:
        return [known for known in self.cached if known[: -self.size] == text]

    def hold(self, text: Text) -> None:
        known = self.cached.setdefault(text, Cached())
        if text not in self.held():
            if known.priority_at(self.now) != known.priority:
                known.priority, known.duration = 35, None
            if known.expires is not None and known.expires <= self.now:
                known.duration = None
            known.expires = None

    def chained(self, running: Running, text: Text) -> None:
        running.chain.append(text)
        if running.retention is not None:
            asked = running.retention.at(len(text) - self.size, running.num_prompt)
            if asked is not None:
                self.cached[text].priority, self.cached[text].duration = asked

    def release(self, text: Text) -> None:
        self.stamp += 1
        known = self.cached[text]
        known.released = self.stamp
        known.expires = None if known.duration is None else self.now + known.duration

    def expect_evictions(self, taken: int, free: int, pinned: set[Text]) -> None:
        """As many as are short go, one after another: the leaf of the lowest priority, longest unheld."""
        for _ in range(max(taken - free, 0)):
            leaves = [text for text in self.cached if text not in pinned and not self.children(text)]
            del self.cached[
                min(leaves, key=lambda t: (self.cached[t].priority_at(self.now), self.cached[t].released))
            ]

    def grown(self, running: Running, num_positions: int) -> bool:
        pages, available = list(running.sequence.pages), self.available()
        free = available - len(set(self.cached) - self.held())
        more = max(self.manager.pages_needed(num_positions) - len(pages), 0)
        grown = self.manager.grow(running.sequence, num_positions)
        assert grown == (more <= available)
        assert running.sequence.pages[: len(pages)] == pages
        assert len(running.sequence.pages) == len(pages) + (more if grown else 0)
        if grown:
            self.expect_evictions(more, free, self.held())
        return grown

    def at(self, running: Running, position: int) -> Text | None:
        return self.content.get((running.sequence.pages[position // self.size], position % self.size))

    def write(self, running: Running, position: int, text: Text | None) -> None:
        page = running.sequence.pages[position // self.size]
        for other in self.running:
            assert other is running or page not in other.sequence.pages, "a shared page is written"
        assert page not in self.pages_of().values(), "a page that can be found is written"
        self.content[page, position % self.size] = text


# -- tests

TestPages = PagesAreWhatTheyShouldBe.TestCase
TestPages.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def some_text(draw: random.Random) -> Text:
    tail = draw.choice([(), (), (1,), (0, 1), (1, 1, 0), tuple(draw.choices([0, 1], k=6))])
    return draw.choice(TUNES)[: draw.randint(1, 14)] + tail


def some_retention(draw: random.Random) -> Retention:
    def wish() -> tuple[int, float | None]:
        return draw.choice([0, 35, 100]), draw.choice([None, 0.0, 2.0, 5.0])

    cut = draw.randint(1, 8)
    ranges = (RetentionRange(0, cut, *wish()), RetentionRange(cut, None, *wish()))
    return Retention(ranges[: draw.randint(0, 2)], *wish())


@pytest.mark.parametrize("seed", range(24))
def test_long_runs(seed: int) -> None:
    """The same, for longer than examples are: the cache is full, and pages come and go by all ways."""
    draw = random.Random(seed)
    machine = PagesAreWhatTheyShouldBe()
    machine.start(draw.choice([6, 10, 16, 30]), 2 + seed % 3, seed % 4 != 3, seed % 3 != 2)
    for _ in range(400):
        which = draw.randrange(8)
        match draw.choices(["begin", "read", "end", "wait"], [4, 8, 3, 1])[0]:
            case "begin":
                text = some_text(draw)
                machine.begin(
                    text,
                    draw.randint(0, 4),
                    draw.choice([0, 0, 0, 1, 3]),
                    draw.random() < 0.9,
                    draw.choice([None, some_retention(draw)]),
                    draw.choice([None, draw.randint(1, len(text))]),
                )
            case "wait":
                machine.wait(draw.choice([0.5, 1.0, 3.0]))
            case "read" if machine.running:
                machine.read(which, draw.randint(1, 12), draw.randint(0, 2), draw.random() < 0.8)
            case "end" if machine.running:
                machine.end(which)
        machine.all_is_well()
    machine.teardown()

"""Pages of layers with windows: a sequence has those that its next queries see, and no more than it claimed."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.engine.kv_pages import cached_texts
from weft.engine.kv.attention_span import AttentionSpan
from weft.engine.kv.cache import KvManager, KvSequence
from weft.engine.kv.pool import MoveKind
from weft.engine.kv.windowed import WindowedPages, pages_while_decoding

Text = tuple[int, ...]
SIZE, AHEAD = 4, 2


def manager_of(
    num_windowed: int, reach: int = 6, sinks: int = 0, num_pages: int = 60, **how: object
) -> KvManager:
    windowed = WindowedPages(num_windowed, SIZE, AttentionSpan(sinks, reach), AHEAD)
    return KvManager(num_pages, SIZE, windowed=windowed, **how)  # type: ignore[arg-type]


def began(manager: KvManager, tokens: list[int]) -> KvSequence:
    sequence = manager.begin(tokens, len(tokens) + AHEAD)
    assert sequence is not None
    manager.check()
    return sequence


def pages(sequence: KvSequence) -> list[int]:
    assert sequence.windowed is not None
    return sequence.windowed.pages


TEXT = [*range(100, 130)]


def test_pages_behind_the_window_are_released_and_stay_cached() -> None:
    manager = manager_of(40)
    sequence = began(manager, TEXT)
    assert len(pages(sequence)) == 8 and 0 not in pages(sequence)
    manager.store(sequence, TEXT, 29)
    manager.release_hidden(sequence, 29)
    manager.check()
    assert [bool(page) for page in pages(sequence)] == [False] * 6 + [True] * 2
    usage = manager.usage()
    assert (usage.max_windowed_pages, usage.free_windowed_pages) == (39, 37)
    other = began(manager, TEXT)
    assert other.num_reused == 28
    assert pages(other)[6] == pages(sequence)[6] and 0 not in pages(other)[6:]
    # In the middle of the text, too, since nothing was evicted.
    assert began(manager, [*TEXT[:14], 1, 2, 3]).num_reused == 14


def test_a_text_begins_where_its_window_is_cached() -> None:
    manager = manager_of(16)  # hardly more than a text has
    sequence = began(manager, TEXT)
    manager.store(sequence, TEXT, 29)
    manager.release_hidden(sequence, 29)
    manager.end(began(manager, [7] * 36))  # evicts what lies behind the window
    manager.check()
    assert began(manager, [*TEXT[:14], 1, 2, 3]).num_reused == 0
    assert began(manager, TEXT).num_reused == 28


def test_sinks_are_part_of_the_window() -> None:
    manager = manager_of(40, sinks=2)
    sequence = began(manager, TEXT)
    manager.store(sequence, TEXT, 29)
    manager.release_hidden(sequence, 29)
    assert [bool(page) for page in pages(sequence)] == [True] + [False] * 5 + [True] * 2


def test_claims_are_kept() -> None:
    each = pages_while_decoding(AttentionSpan(0, 6), SIZE, AHEAD)
    manager = manager_of(1 + 8 + each)
    first = began(manager, TEXT)
    assert manager.begin([7] * 30, 32) is None, "two prompts at once do not fit"
    manager.store(first, TEXT, 29)
    manager.release_hidden(first, 29)
    assert manager.begin([7] * 30, 32) is not None
    manager.check()


def test_a_copied_page_is_copied_in_all_layers() -> None:
    manager = manager_of(40)
    sequence = began(manager, TEXT)
    manager.store(sequence, TEXT, 29)
    other = began(manager, [*TEXT[:14], 1, 2, 3])
    assert [move.kind for move in manager.take_moves()] == [MoveKind.COPY, MoveKind.COPY_WINDOWED]
    manager.end(other)
    manager.end(sequence, TEXT, 29)
    manager.check()
    again = began(manager, [*TEXT[:29], 5, 5])  # takes over the last page
    assert again.num_reused == 29 and manager.take_moves() == []


def test_the_windows_before_a_prompts_end_outlive_those_within_it() -> None:
    manager = manager_of(26)
    for base in (100, 200, 300):  # eight pages each, of which two are before the end
        text = [*range(base, base + 30)]
        sequence = began(manager, text)
        manager.store(sequence, text, 29)
        manager.release_hidden(sequence, 29)
        manager.end(sequence)
    manager.end(began(manager, [7] * 40))
    manager.check()
    for base in (100, 200, 300):
        assert began(manager, [*range(base, base + 30)]).num_reused == 28
    assert began(manager, [*range(100, 114), 1, 2, 3]).num_reused == 0


# -- long runs: the content of windowed pages is simulated

TUNES = [tuple(map(int, text)) for text in ("0" * 40, "01" * 20, "0001" * 10, "0" * 5 + "1" * 35)]
TEXTS = st.builds(
    lambda tune, length, tail: TUNES[tune][:length] + tail,
    st.integers(0, len(TUNES) - 1),
    st.integers(1, 30),
    st.sampled_from([(), (), (1,), (0, 1), (1, 1, 0)]),
)


@dataclass(eq=False)
class Reading:
    sequence: KvSequence
    text: Text
    num_read: int
    num_decoded: int = 0


class WindowsHaveTheirContent(RuleBasedStateMachine):
    @initialize(
        num_pages=st.sampled_from([14, 30, 60]),
        num_windowed=st.sampled_from([26, 32, 50]),
        reach=st.sampled_from([1, 3, 6, 11]),
        sinks=st.sampled_from([0, 0, 2, 5]),
        partial=st.sampled_from([True, True, False]),
        copies=st.booleans(),
        margin=st.sampled_from([0, 0, 1, 4]),
    )
    def start(
        self,
        num_pages: int,
        num_windowed: int,
        reach: int,
        sinks: int,
        partial: bool,
        copies: bool,
        margin: int,
    ) -> None:
        self.span, self.margin, self.num_pages = AttentionSpan(sinks, reach), margin, num_pages
        self.manager = manager_of(
            num_windowed, reach, sinks, num_pages, partial_reuse=partial, copy_on_partial_reuse=copies
        )
        self.num_windowed = num_windowed
        self.running: list[Reading] = []
        self.content: dict[tuple[int, int], Text | None] = {}

    @rule(text=TEXTS, reuse=st.sampled_from([True, True, True, False]))
    def begin(self, text: Text, reuse: bool) -> None:
        text = text[: (self.num_pages - 1) * SIZE - AHEAD]
        sequence = self.manager.begin(text, len(text) + AHEAD, margin=self.margin, reuse=reuse)
        if sequence is None:
            return
        for move in self.manager.take_moves():
            if move.kind is MoveKind.COPY_WINDOWED:
                for offset in range(SIZE):
                    self.content[move.target, offset] = self.content.get((move.source, offset))
        self.running.append(Reading(sequence, text, sequence.num_reused))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 3))
    def read(self, which: int) -> None:
        """Read a prompt to its end, store it, and release what is behind the window."""
        reading = self.running[which % len(self.running)]
        if reading.num_decoded:
            return
        last = len(reading.text) - 1
        for position in range(reading.num_read, last):
            self.write(reading, position)
        reading.num_read = last
        self.decode_token(reading)
        self.cache(reading)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 3), count=st.integers(1, 9))
    def decode(self, which: int, count: int) -> None:
        reading = self.running[which % len(self.running)]
        if not reading.num_decoded:
            return
        for _ in range(count):
            if not self.manager.grow(reading.sequence, len(reading.text) + AHEAD):
                return
            self.decode_token(reading)
            if reading.num_decoded % SIZE == 0:
                self.cache(reading)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 3), keeps=st.booleans())
    def end(self, which: int, keeps: bool) -> None:
        reading = self.running.pop(which % len(self.running))
        if keeps and reading.num_decoded:
            self.manager.end(reading.sequence, reading.text, max(reading.num_read - self.margin, 0))
        else:
            self.manager.end(reading.sequence)

    @rule()
    def discard(self) -> None:
        self.manager.discard_cache()

    @invariant()
    def all_is_well(self) -> None:
        self.manager.check()
        for reading in self.running:
            hidden = self.span.hidden(reading.num_read, SIZE)
            for position in range(reading.num_read):
                if position // SIZE not in hidden:
                    assert self.content[self.place(reading, position)] == reading.text[: position + 1]
        for page, text in cached_texts(self.manager).items():
            start = len(text) - len(page.tokens)
            for offset in range(len(page.tokens) if page.windowed else 0):
                assert self.content[page.windowed, offset] == text[: start + offset + 1]

    def teardown(self) -> None:
        while getattr(self, "running", []):
            self.end(0, keeps=False)
            self.all_is_well()
        if hasattr(self, "manager"):
            self.manager.discard_cache()
            assert self.manager.windowed is not None
            assert sorted(self.manager.windowed.free) == list(range(1, self.num_windowed))

    # Bookkeeping

    def cache(self, reading: Reading) -> None:
        self.manager.store(reading.sequence, reading.text, max(reading.num_read - self.margin, 0))
        self.manager.release_hidden(reading.sequence, reading.num_read)

    def decode_token(self, reading: Reading) -> None:
        """Write the last token's entry, sample a token, and write drafts that come to nothing."""
        self.write(reading, reading.num_read)
        reading.num_read += 1
        reading.num_decoded += 1
        reading.text += (reading.text[-1],)
        for position in range(reading.num_read, reading.num_read + AHEAD - 1):
            self.content[self.place(reading, position)] = None

    def place(self, reading: Reading, position: int) -> tuple[int, int]:
        number = pages(reading.sequence)[position // SIZE]
        assert number
        return number, position % SIZE

    def write(self, reading: Reading, position: int) -> None:
        place = self.place(reading, position)
        for other in self.running:
            assert other is reading or place[0] not in pages(other.sequence), "a shared page is written"
        self.content[place] = reading.text[: position + 1]


TestWindows = WindowsHaveTheirContent.TestCase
TestWindows.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

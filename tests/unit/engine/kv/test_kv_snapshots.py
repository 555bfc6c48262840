"""Snapshots of recurrent states: which cached prefixes are usable, which rows are kept, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.engine.kv_pages import SIZE, TEXT, began, cached_texts
from weft.engine.kv.cache import KvManager, KvSequence
from weft.engine.kv.prefix_tree import Snapshot


def manager_of(num_snapshots: int = 8, **how: object) -> KvManager:
    return KvManager(60, SIZE, num_snapshots=num_snapshots, **how)  # type: ignore[arg-type]


def run(
    manager: KvManager, tokens: list[int], margin: int = 0, rest: int | None = None, answer: int = 0
) -> KvSequence:
    """Read a text, save what it wants to save, decode `answer` more tokens, and end it. `rest`: the position of the
    state to keep at the end."""
    sequence = began(manager, tokens[: len(tokens) - answer], len(tokens) + 4, margin=margin)
    for position in sequence.save_at:
        manager.take_snapshot(sequence, position)
    manager.store(sequence, tokens, len(tokens) - 1 - margin)
    if rest is not None:
        assert manager.take_snapshot(sequence, rest) is not None
    manager.end(sequence, tokens, rest if rest is not None else len(tokens) - 1 - margin)
    manager.check()
    return sequence


def test_nothing_is_reused_without_a_snapshot() -> None:
    manager = manager_of()
    sequence = began(manager, TEXT)
    manager.end(sequence, TEXT, 13)
    again = began(manager, TEXT)
    assert (again.num_reused, again.snapshot) == (0, None)
    assert again.counts.reused == 0


def test_a_prompt_keeps_the_state_at_its_last_page_and_others_begin_there() -> None:
    manager = manager_of()
    first = run(manager, TEXT)
    assert first.save_at == [12]
    again = began(manager, [*TEXT, 1, 2, 3])
    assert again.num_reused == 12 and again.snapshot is not None
    assert again.save_at == [16]
    usage = manager.usage()
    assert (usage.max_snapshots, usage.snapshots, usage.snapshot_hits) == (8, 1, 1)


def test_the_state_at_the_end_of_a_text_serves_texts_that_continue_it() -> None:
    manager = manager_of()
    run(manager, TEXT, rest=13)
    again = began(manager, [*TEXT, 1, 2, 3])
    assert again.num_reused == 13
    other = began(manager, [*TEXT[:13], 7, 7, 7])  # the page is taken, and its snapshot with it
    assert other.num_reused == 12


def test_a_page_that_is_taken_over_brings_its_snapshots() -> None:
    manager = manager_of()
    run(manager, TEXT, rest=13)
    longer = [*TEXT, 1, 2, 3, 4]
    taken = began(manager, longer)
    assert taken.snapshot is not None and [each.position for each in taken.pending] == [13]
    manager.store(taken, longer, 17)
    manager.check()
    other = began(manager, [*TEXT[:13], 7, 7, 7])
    assert other.num_reused == 13 and other.snapshot == taken.snapshot


def test_a_text_that_leaves_the_cached_path_keeps_the_state_there() -> None:
    manager = manager_of()
    system = list(range(9))  # two pages and a token
    run(manager, [*system, *TEXT])
    second = began(manager, [*system, *range(40, 60)])
    assert second.num_reused == 0
    assert second.save_at == [8, 28], "where it leaves the first text, and at its own end"
    manager.end(second)
    run(manager, [*system, *range(40, 60)])
    third = began(manager, [*system, *range(70, 90)])
    assert third.num_reused == 8 and third.save_at == [28]


def test_a_margin_counts_after_the_snapshot() -> None:
    manager = manager_of()
    run(manager, TEXT, margin=1)
    assert began(manager, TEXT, margin=1).num_reused == 12
    assert began(manager, [*TEXT[:13], 7, 7], margin=1).num_reused == 12
    # Only twelve tokens match, and the next token is another one.
    assert began(manager, [*TEXT[:12], 7, 7], margin=1).num_reused == 0
    assert began(manager, [*TEXT[:12], 7, 7], margin=0).num_reused == 12


def test_the_same_next_token_stands_for_a_margin_of_one() -> None:
    manager = manager_of()
    run(manager, TEXT, margin=1, rest=13)
    for margin, tokens, expected in [
        (1, [*TEXT, 1], 13),  # 113 follows, as when the state was kept
        (1, [*TEXT[:13], 7, 7], 12),
        (2, [*TEXT, 1], 0),  # the state at 12 needs 14 matching tokens, of which only 13 are cached
    ]:
        sequence = manager.begin(tokens, 20, margin=margin)
        assert sequence is not None and sequence.num_reused == expected
        manager.end(sequence, tokens, sequence.num_reused)
        manager.check()


def test_a_next_token_can_be_given() -> None:
    manager = manager_of()
    sequence = began(manager, TEXT)
    assert manager.take_snapshot(sequence, 14, next_token=5) is not None
    manager.end(sequence, TEXT, 14)
    assert began(manager, [*TEXT, 6, 6], margin=1).num_reused == 0
    assert began(manager, [*TEXT, 5, 6], margin=1).num_reused == 14


def test_without_partial_reuse_only_page_ends_count() -> None:
    manager = manager_of(partial_reuse=False)
    sequence = began(manager, TEXT)
    assert manager.take_snapshot(sequence, 13) is None
    manager.end(sequence)
    run(manager, TEXT)
    assert began(manager, TEXT).num_reused == 12


def test_a_page_that_cant_be_copied_gives_way_to_an_earlier_snapshot() -> None:
    manager = manager_of(copy_on_partial_reuse=False)
    sequence = run(manager, TEXT, rest=13)
    longer = [*TEXT, 1, 2]
    holder = began(manager, longer)
    manager.store(holder, longer, 16)  # the page with the snapshot at 13 is held
    assert sequence.pages == [] and holder.num_reused == 13
    assert began(manager, [*TEXT[:13], 7, 7]).num_reused == 12


def test_the_least_recently_used_row_goes_first() -> None:
    manager = manager_of(num_snapshots=2)
    texts = [[base] * 9 for base in (1, 2, 3)]
    run(manager, texts[0])
    run(manager, texts[1])
    manager.end(began(manager, texts[0]))  # used again
    run(manager, texts[2])
    assert [began(manager, text).num_reused for text in texts] == [8, 0, 8]


def test_pending_rows_are_not_evicted() -> None:
    manager = manager_of(num_snapshots=1)
    first, second = began(manager, [1] * 9), began(manager, [2] * 9)
    assert manager.take_snapshot(first, 8) == 0
    assert manager.take_snapshot(second, 8) is None
    manager.end(first)
    assert manager.take_snapshot(second, 8) == 0
    manager.discard_cache()
    manager.check()
    manager.end(second, [2] * 9, 8)
    manager.check()
    assert manager.usage().snapshots == 0


def test_the_same_state_is_kept_once() -> None:
    manager = manager_of()
    first, second = began(manager, TEXT), began(manager, TEXT)
    for sequence in (first, second):
        manager.take_snapshot(sequence, 12)
    for sequence in (first, second):
        manager.store(sequence, TEXT, 13)
        manager.check()
    assert manager.usage().snapshots == 1


def test_a_snapshot_stays_with_a_page_on_the_host() -> None:
    manager = KvManager(8, SIZE, num_snapshots=4, num_host_pages=8)
    run(manager, TEXT[:9])
    assert manager.usage().snapshots == 1
    everything = began(manager, [7], 7 * SIZE)
    assert manager.usage().snapshots == 1
    manager.end(everything)
    again = began(manager, TEXT[:9])
    assert again.num_reused == 8 and again.snapshot is not None


def test_a_page_that_leaves_frees_its_rows() -> None:
    manager = KvManager(6, SIZE, num_snapshots=4)
    run(manager, TEXT[:9], rest=8)
    began(manager, [7], 5 * SIZE)
    manager.check()
    assert manager.usage().snapshots == 0


# -- long runs: rows are simulated, each with the text whose state it has

TUNES = [tuple(map(int, text)) for text in ("0" * 24, "01" * 12, "0001" * 6, "0" * 5 + "1" * 19)]
TEXTS = st.builds(
    lambda tune, length, tail: TUNES[tune][:length] + tail,
    st.integers(0, len(TUNES) - 1),
    st.integers(1, 14),
    st.sampled_from([(), (), (1,), (0, 1), (1, 1, 0)]),
)


@dataclass(eq=False)
class Reading:
    """A sequence, its text, and how much of it was read. `saves` are the positions that it still has to save."""

    sequence: KvSequence
    text: tuple[int, ...]
    num_read: int
    margin: int


class RowsHaveTheStatesOfTheirTexts(RuleBasedStateMachine):
    @initialize(
        num_pages=st.sampled_from([8, 14, 30, 30]),
        num_host=st.sampled_from([0, 0, 6]),
        size=st.integers(2, 4),
        rows=st.sampled_from([1, 3, 6, 20]),
        partial=st.sampled_from([True, True, False]),
        copies=st.booleans(),
        margin=st.sampled_from([0, 0, 1, 1, 4]),
    )
    def start(
        self, num_pages: int, num_host: int, size: int, rows: int, partial: bool, copies: bool, margin: int
    ) -> None:
        self.size, self.partial, self.copies, self.margin = size, partial, copies, margin
        self.manager = KvManager(
            num_pages,
            size,
            num_host_pages=num_host,
            num_snapshots=rows,
            partial_reuse=partial,
            copy_on_partial_reuse=copies,
        )
        self.num_pages = num_pages
        self.rows: list[tuple[int, ...] | None] = [None] * rows
        self.running: list[Reading] = []

    @rule(text=TEXTS, more=st.integers(0, 4), reuse=st.sampled_from([True, True, True, False]))
    def begin(self, text: tuple[int, ...], more: int, reuse: bool) -> None:
        positions = min(len(text) + more, (self.num_pages - 1) * self.size)
        text = text[:positions]
        on_path = self.usable_on_path(text)
        sequence = self.manager.begin(text, positions, margin=self.margin, reuse=reuse)
        if sequence is None:
            return
        num_reused = sequence.num_reused
        assert (sequence.snapshot is not None) == (num_reused > 0)
        assert num_reused < len(text)
        if sequence.snapshot is not None:
            assert self.rows[sequence.snapshot] == text[:num_reused], "the state is another text's"
        if reuse and self.partial and self.copies:
            has_room = bool(sequence.copies) or self.manager.num_available > 0
            assert num_reused >= max(on_path, default=0) or not has_room
        if reuse:
            assert num_reused >= max((p for p in on_path if p % self.size == 0), default=0)
        last = len(text) - 1 - self.margin
        assert sequence.save_at == sorted({*sequence.save_at})
        assert all(num_reused < p <= last and p % self.size == 0 for p in sequence.save_at)
        if last // self.size * self.size > num_reused:
            assert sequence.save_at[-1] == last // self.size * self.size
        self.running.append(Reading(sequence, text, num_reused, self.margin))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 3), count=st.integers(1, 9), stores=st.booleans())
    def read(self, which: int, count: int, stores: bool) -> None:
        """Read on, or decode beyond the prompt."""
        reading = self.running[which % len(self.running)]
        stop = reading.num_read + count
        if not self.manager.grow(reading.sequence, stop + 1):
            return
        while len(reading.text) < stop + 1:
            reading.text += (reading.text[-1],)
        reading.num_read = stop
        save_at = reading.sequence.save_at
        while save_at and save_at[0] <= stop:
            self.keep(reading, save_at.pop(0))
        if stores:
            self.manager.store(reading.sequence, reading.text, max(stop - self.margin, 0))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 3), keeps=st.sampled_from([True, True, False]), fails=st.booleans())
    def end(self, which: int, keeps: bool, fails: bool) -> None:
        reading = self.running.pop(which % len(self.running))
        position = reading.num_read
        if fails and not keeps:
            self.manager.end(reading.sequence)
            return
        if keeps and position > reading.sequence.num_reused:
            self.keep(reading, position)
        self.manager.end(reading.sequence, reading.text, position)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 3))
    def resume(self, which: int) -> None:
        """A sequence that is preempted and comes back at once reads only its last token, if its row was kept."""
        reading = self.running[which % len(self.running)]
        self.end(which, keeps=True, fails=False)
        self.all_is_well()
        text = reading.text[: reading.num_read + 1]
        kept = reading.num_read in self.usable_on_path(text)
        num_running = len(self.running)
        self.begin(text, 0, reuse=True)
        if kept and len(self.running) > num_running and self.partial and self.copies and self.margin < 2:
            again = self.running[-1].sequence
            assert again.num_reused == reading.num_read or not self.manager.num_available

    @rule()
    def discard(self) -> None:
        self.manager.discard_cache()

    @invariant()
    def all_is_well(self) -> None:
        self.manager.check()
        texts = cached_texts(self.manager)
        for page, text in texts.items():
            for snapshot in page.snapshots:
                start = len(text) - len(page.tokens)
                assert self.rows[snapshot.row] == text[: start + snapshot.offset], "a row has another state"
        usage = self.manager.usage()
        assert usage.snapshots == sum(len(page.snapshots) for page in texts)

    def teardown(self) -> None:
        while getattr(self, "running", []):
            self.end(0, keeps=False, fails=False)
            self.all_is_well()
        if hasattr(self, "manager"):
            self.manager.discard_cache()
            self.manager.check()
            assert self.manager.usage().snapshots == 0
            assert self.manager.num_available == self.num_pages - 1

    # Bookkeeping

    def keep(self, reading: Reading, position: int) -> None:
        row = self.manager.take_snapshot(reading.sequence, position)
        if row is not None:
            for other in self.running:
                assert sum(each.row == row for each in other.sequence.pending) == (other is reading)
            self.rows[row] = reading.text[:position]

    def usable_on_path(self, text: tuple[int, ...]) -> list[int]:
        """The positions of the snapshots on the text's cached path that it may begin with."""
        texts = cached_texts(self.manager)
        path = {page: known for page, known in texts.items() if text[: len(known)] == known}
        matched = max(map(len, path.values()), default=0)
        usable: list[tuple[int, Snapshot]] = []
        for page, known in path.items():
            start = len(known) - len(page.tokens)
            usable += [(start + snapshot.offset, snapshot) for snapshot in page.snapshots]
        limit = min(matched, len(text) - 1)
        return [
            position
            for position, snapshot in usable
            if position <= limit - self.margin
            or (self.margin == 1 and position <= limit and snapshot.next_token == text[position])
        ]


TestRows = RowsHaveTheStatesOfTheirTexts.TestCase
TestRows.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_without_states_nothing_is_kept() -> None:
    manager = manager_of(num_snapshots=0)
    sequence = began(manager, TEXT)
    assert sequence.save_at == [] and manager.take_snapshot(sequence, 12) is None
    manager.end(sequence, TEXT, 13)
    assert began(manager, TEXT).num_reused == 13

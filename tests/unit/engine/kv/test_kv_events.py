"""What is told of cached pages: when, under which names, and to whom."""

from __future__ import annotations

import threading
import time

from support.engine.kv_pages import SIZE, asking, began
from weft.engine.kv.cache import KvManager
from weft.engine.kv.events import (
    Change,
    KvEvent,
    KvEventLog,
    PagesCreated,
    PagesRemoved,
    PagesStored,
    PageUpdated,
    page_hash,
)


class Told:
    """A manager, and what it tells."""

    def __init__(self, num_pages: int, num_host_pages: int = 0, size: int = 1024) -> None:
        self.log = KvEventLog(size, 64)
        self.manager = KvManager(num_pages + 1, SIZE, num_host_pages=num_host_pages, log=self.log)

    def events(self) -> list[KvEvent]:
        self.log.flush()
        return self.log.get_latest_events(0)


def test_a_life_of_pages() -> None:
    """Texts, pools and events of one of TensorRT-LLM's own tests; what differs is said."""
    told = Told(8, 2)
    manager = told.manager
    [created] = told.events()
    assert created == KvEvent(0, PagesCreated((8, 2)), 64)
    assert told.events() == []

    first = began(manager, list(range(10)))
    manager.store(first, list(range(10)), 9)
    [stored] = told.events()
    assert isinstance(stored.data, PagesStored)
    assert stored.data.parent_hash is None and len(stored.data.pages) == 2
    assert [page.tokens for page in stored.data.pages] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert {(page.level, page.priority, page.lora_id) for page in stored.data.pages} == {(0, 35, None)}
    manager.end(first, [*range(10), 0], 10)
    [ended] = told.events()
    assert ended.id == stored.id + 1 and isinstance(ended.data, PagesStored)
    assert ended.data.parent_hash == stored.data.pages[-1].hash
    assert [page.tokens for page in ended.data.pages] == [(8, 9)]

    same = began(manager, list(range(9)))
    manager.end(same, list(range(9)), 8)
    assert told.events() == [], "all of it can be found already"

    other = [began(manager, [token, *range(1, 13)]) for token in (1, 2)]
    *swapped, removed = (event.data for event in told.events())
    assert len(swapped) == 3
    assert all(isinstance(data, PageUpdated) and data.level == Change(0, 1) for data in swapped)
    assert isinstance(swapped[0], PageUpdated)
    assert removed == PagesRemoved((swapped[0].hash,)), "the first to go to the host goes for good"
    for sequence, token in zip(other, (1, 2), strict=True):
        manager.end(sequence, [token, *range(1, 13)], 12)
    both = [event.data for event in told.events()]
    assert [(data.parent_hash, len(data.pages)) for data in both if isinstance(data, PagesStored)] == [
        (None, 3),
        (None, 3),
    ]

    last = began(manager, [0, 1, 2, 3, 1, 1, 1, 1, 0])
    kinds = [event.data for event in told.events()]
    levels = [data.level for data in kinds if isinstance(data, PageUpdated)]
    assert levels.count(Change(1, 0)) == 1 and levels.count(Change(0, 1)) >= 1
    manager.store(last, [0, 1, 2, 3, 1, 1, 1, 1, 0], 8)
    assert isinstance(told.events()[0].data, PagesStored)


def test_priorities_are_told() -> None:
    told = Told(8)
    text = list(range(8))
    first = began(told.manager, text, retention=asking(50))
    told.manager.end(first, text, 7)
    stored = told.events()[1].data
    assert isinstance(stored, PagesStored) and [page.priority for page in stored.pages] == [50, 50]
    told.manager.end(began(told.manager, text), text, 7)
    assert not [event for event in told.events() if isinstance(event.data, PageUpdated)], "nothing was asked"
    told.manager.end(began(told.manager, text, retention=asking(80)), text, 4)
    updates = [event.data for event in told.events() if isinstance(event.data, PageUpdated)]
    assert updates == [PageUpdated(stored.pages[0].hash, priority=Change(50, 80))]


def test_a_page_that_is_taken_over_is_no_longer_found() -> None:
    told = Told(8)
    told.manager.end(began(told.manager, [1, 2]), [1, 2], 2)
    stored = told.events()[-1].data
    assert isinstance(stored, PagesStored)
    began(told.manager, [1, 2, 3])
    assert told.events()[0].data == PagesRemoved((stored.pages[0].hash,))


def test_what_nobody_takes_is_dropped_the_oldest_first() -> None:
    told = Told(8, size=3)
    for token in range(1, 6):
        text = [token] * 4
        told.manager.end(began(told.manager, text), text, 4)
        if token % 2:
            told.log.flush()
    assert [event.id for event in told.events()] == [3, 4, 5]
    assert told.events() == []


def test_removals_one_after_another_are_one_event() -> None:
    told = Told(3)
    text = list(range(12))
    told.manager.end(began(told.manager, text), text, 12)
    began(told.manager, [9], 12)
    assert isinstance(told.events()[-1].data, PagesRemoved)


def test_events_can_be_waited_for() -> None:
    log = KvEventLog(4, 8)
    began_at = time.monotonic()
    assert log.get_latest_events(0.1) == []
    assert time.monotonic() - began_at >= 0.09
    taken: list[list[KvEvent]] = []
    reader = threading.Thread(target=lambda: taken.append(log.get_latest_events()))
    reader.start()
    log.note(PagesCreated((1, 0)))
    assert not taken, "it was not flushed"
    log.flush()
    reader.join(60)
    assert [event.id for event in taken[0]] == [0]
    reader = threading.Thread(target=lambda: taken.append(log.get_latest_events()))
    reader.start()
    log.close()
    reader.join(60)
    assert taken[1] == [] == log.get_latest_events()


def test_names_stay_what_they_are() -> None:
    """Readers outside keep them."""
    assert page_hash(page_hash(0, [1, 2], 7), [3]) == 3066697276936336274


def test_names_tell_texts_and_salts_apart() -> None:
    names = {
        page_hash(parent, tokens, salt)
        for parent in (0, 1)
        for tokens in ([], [0], [0, 0], [1], [1 << 40])
        for salt in (0, 1)
    }
    assert len(names) == 20 and all(0 <= name < 1 << 64 for name in names)


def test_two_salts_have_no_name_in_common_and_tell_no_salt() -> None:
    told = Told(30)
    text = list(range(10))
    for salt in ("a", "b", None):
        told.manager.end(began(told.manager, text, salt=salt), text, 9)
    stored = [event.data for event in told.events() if isinstance(event.data, PagesStored)]
    pages = [page for data in stored for page in data.pages]
    assert len(pages) == 9 == len({page.hash for page in pages})
    assert [page.tokens for page in pages] == [(0, 1, 2, 3), (4, 5, 6, 7), (8,)] * 3

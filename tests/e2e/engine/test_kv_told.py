"""What an engine tells of its pages: counts by request and in total, and events."""

from __future__ import annotations

import pytest

from weft import LLM, EngineConfig, SamplingParams
from weft.engine.kv.events import Change, KvEvent, PagesCreated, PagesRemoved, PagesStored, PageUpdated


def fixed(tokens: int) -> SamplingParams:
    """So many tokens, whatever they are."""
    return SamplingParams(max_tokens=tokens, min_tokens=tokens)


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
def test_pages_of_a_request_are_counted_as_they_begin(policy: str) -> None:
    with LLM(engine=EngineConfig(page_size=32, policy=policy)) as llm:  # type: ignore[arg-type]
        short = llm.generate([[1, 2, 3, 4]], sampling=fixed(5), cache_salt="apart")[0].stats
        assert (short.allocated_pages, short.new_pages, short.reused_pages) == (1, 1, 0)
        assert (short.missed_pages, short.page_hit_rate) == (1, 0.0)
        first = llm.generate([[1, 2, 3, 4]], sampling=fixed(32))[0]
        text = [1, 2, 3, 4, *first.token_ids, 1, 2, 3, 4]
        again = llm.generate([text], sampling=fixed(32))[0].stats
        assert (again.allocated_pages, again.new_pages, again.reused_pages) == (0, 0, 2)
        assert (again.missed_pages, again.page_hit_rate, again.reused_tokens) == (0, 1.0, 35)
        usage = llm.engine.kv.usage()
        assert (usage.reused_pages, usage.missed_pages, usage.hit_rate) == (2, 2, 0.5)
        assert usage.new_pages <= usage.allocated_pages


def after(llm: LLM) -> list[KvEvent]:
    """The events, once the engine is idle."""
    engine = llm.engine
    while llm.client.call(lambda: engine.has_work):
        pass
    assert engine.kv_events is not None
    return engine.kv_events.get_latest_events(0.1)


def test_the_stream_of_events_is_as_tensorrt_llms() -> None:
    """Four pages of 64 tokens and one on the host; two prompts of 127 tokens, with answers of 5. TensorRT-LLM takes
    pages when they are written: its second request makes room in two turns."""
    engine = EngineConfig(max_batch=1, max_seq_len=192, page_size=64, num_pages=5, kv_event_buffer=1024)
    with LLM(engine=engine) as llm:
        page_bytes = llm.engine.parts.kv.page_bytes
    engine = EngineConfig(
        max_batch=1,
        max_seq_len=192,
        page_size=64,
        num_pages=5,
        kv_event_buffer=1024,
        host_cache_bytes=page_bytes,
    )
    with LLM(engine=engine) as llm:
        assert llm.engine.kv_events is not None
        [created] = llm.engine.kv_events.get_latest_events()
        assert created == KvEvent(0, PagesCreated((4, 1)), window_size=192, rank=None)

        first = llm.generate([list(range(3, 130))], sampling=fixed(5))[0]
        events = after(llm)
        stored = [event.data for event in events]
        assert [event.id for event in events] == [1, 2, 3]
        assert all(isinstance(data, PagesStored) for data in stored)
        pages = [page for data in stored if isinstance(data, PagesStored) for page in data.pages]
        assert [len(page.tokens) for page in pages] == [64, 64, 3]
        tokens = [*range(3, 130), *first.token_ids]
        assert [token for page in pages for token in page.tokens] == tokens[:-1]
        parents = [data.parent_hash for data in stored if isinstance(data, PagesStored)]
        assert parents == [None, pages[0].hash, pages[1].hash]

        llm.generate([list(range(4, 131))], sampling=fixed(5))
        data = [event.data for event in after(llm)]
        swapped, also_swapped, removed = data[:3]
        assert swapped == PageUpdated(pages[2].hash, level=Change(0, 1))
        assert also_swapped == PageUpdated(pages[1].hash, level=Change(0, 1))
        assert removed == PagesRemoved((pages[2].hash,))
        assert [type(each) for each in data[3:]] == [PagesStored] * 3
        assert isinstance(data[3], PagesStored) and data[3].parent_hash is None
        llm.generate([list(range(3, 130))], sampling=fixed(5))
        levels = [each.data.level for each in after(llm) if isinstance(each.data, PageUpdated)]
        assert Change(1, 0) in levels


def test_an_engine_without_a_buffer_tells_nothing() -> None:
    with LLM() as llm:
        assert llm.engine.kv_events is None


def test_who_waits_for_events_is_told_of_the_end() -> None:
    with LLM(engine=EngineConfig(kv_event_buffer=4)) as llm:
        events = llm.engine.kv_events
        assert events is not None and len(events.get_latest_events()) == 1
    assert events.get_latest_events() == []

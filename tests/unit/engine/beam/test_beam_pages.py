"""The pages of beams against what each beam should find in them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.beam_params import beam_pages_needed
from weft.engine.features.beam.run import BeamPages


@dataclass
class Cache:
    """What lies in each page: the tokens by place, as beams wrote them."""

    page_size: int
    content: dict[int, list[int | None]]

    def write(self, table: Sequence[int], position: int, token: int) -> None:
        page = table[position // self.page_size]
        self.content.setdefault(page, [None] * self.page_size)[position % self.page_size] = token

    def read(self, table: Sequence[int], count: int) -> list[int | None]:
        return [self.content[table[i // self.page_size]][i % self.page_size] for i in range(count)]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        assert not {source for source, _ in pairs} & {target for _, target in pairs}
        for source, target in pairs:
            self.content[target] = list(self.content[source])


@given(
    page_size=st.integers(1, 5),
    prompt=st.integers(1, 12),
    room=st.integers(1, 14),
    widths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=200, deadline=None)
def test_every_beam_finds_its_own_text_in_its_pages(
    page_size: int, prompt: int, room: int, widths: list[int], seed: int
) -> None:
    rng = random.Random(seed)
    given_pages = rng.sample(range(1, 500), beam_pages_needed(prompt, room, widths, page_size))
    pages = BeamPages(given_pages, prompt, page_size)
    shared = set(pages.tables[0][: prompt // page_size])
    cache = Cache(page_size, {})
    texts = [list(range(1000, 1000 + prompt))]
    for position, token in enumerate(texts[0]):
        cache.write(pages.tables[0], position, token)
    for step in range(room):
        width = widths[min(step, len(widths) - 1)]
        parents = [rng.randrange(len(texts)) for _ in range(rng.choice([width, rng.randint(1, width)]))]
        cache.copy(pages.advance(parents))
        texts = [[*texts[parent], 10 * step + b] for b, parent in enumerate(parents)]
        for text, table in zip(texts, pages.tables, strict=True):
            assert table[len(text) // page_size - (len(text) % page_size == 0)] not in shared
            cache.write(table, len(text) - 1, text[-1])
        for text, table in zip(texts, pages.tables, strict=True):
            assert cache.read(table, len(text)) == text
        held = {page for table in pages.tables for page in table}
        assert len(held) + pages.num_free == len(given_pages)
    pages.advance([])
    assert pages.num_free == len(given_pages)


@pytest.mark.parametrize(
    ("prompt", "room", "widths", "needed"),
    [
        (16, 8, [3], 2 + 3),
        (17, 8, [3], 2 + 3 * 2),
        (17, 7, [3], 2 + 3),
        (17, 1, [3], 2 + 3),
        (16, 20, [8, 2], 2 + 8),  # the many are short
        (16, 100, [8, 2], 2 + 2 * 13),
        (23, 100, [1, 8, 2], 2 + 2 * 14),
        (23, 3, [1, 8, 2], 2 + 8 * 2),
    ],
)
def test_as_many_pages_as_the_widest_step_needs(
    prompt: int, room: int, widths: list[int], needed: int
) -> None:
    assert beam_pages_needed(prompt, room, widths, 8) == needed

"""Ids of requests and answers: no two are the same, from whatever thread."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from weft.server.ids import BATCH, new_hex


def test_no_two_are_the_same() -> None:
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda _: new_hex(), range(20 * BATCH)))
    assert len(set(drawn)) == len(drawn)
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in drawn)

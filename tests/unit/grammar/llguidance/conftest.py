"""LLGuidance over the small vocabulary."""

from __future__ import annotations

import pytest

from support.grammar.grammars import small_vocabulary
from weft.grammar.llguidance.backend import LLGuidanceBackend


@pytest.fixture(scope="module")
def backend() -> LLGuidanceBackend:
    return LLGuidanceBackend(small_vocabulary())

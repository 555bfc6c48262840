"""Every drafter that can be chosen by name stands in the table from which the end-to-end tests take theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.engine.drafters import BEHIND_GIVEN, DRAFTERS
from weft import registry


@pytest.mark.parametrize("name", registry.names("drafters"))
def test_is_compared_with_decoding_without(name: str) -> None:
    speculations = [make(Path("random"), 1) for make in DRAFTERS.values()]
    speculations += [make(1) for make in BEHIND_GIVEN.values()]
    assert any(name in speculation.drafters for speculation in speculations), (
        f"add Speculation.{name} to DRAFTERS or BEHIND_GIVEN in tests/support/engine/drafters.py"
    )

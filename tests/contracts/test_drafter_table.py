"""Every drafter that can be chosen by name stands in the table from which the end-to-end tests take theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.engine.drafters import BEHIND_GIVEN, DRAFTERS
from weft import package_model_path, registry


@pytest.mark.parametrize("name", registry.names("drafters"))
def test_is_compared_with_decoding_without(name: str) -> None:
    speculations = [make(Path("random"), 1) for make in DRAFTERS.values()]
    speculations += [make(1) for make in BEHIND_GIVEN.values()]
    assert any(name in speculation.drafters for speculation in speculations)


@pytest.mark.parametrize("name", sorted(DRAFTERS))
def test_weights_are_found(name: str) -> None:
    """In weft-tiny, or among the random ones that are saved for a test."""
    speculation = DRAFTERS[name](Path("random"), 1)
    for drafter in speculation.drafters:
        directory = getattr(registry.load("drafters", drafter), "directory", None)
        assert (
            directory is None or speculation.path is not None or (package_model_path() / directory).is_dir()
        ), (
            f"add {drafter} to DRAFTERS in tests/support/engine/drafters.py, with weights that "
            "`save_random_drafters` saves"
        )

"""Whether drafts are masked is measured, decided, and looked at again."""

from __future__ import annotations

import pytest

from weft.engine.runner.draft_guidance import BLOCK, HOLD, MEASURED, WARM_UP, DraftGuidance


def drive(
    guidance: DraftGuidance, iterations: int, seconds: dict[bool, float], tokens: dict[bool, int]
) -> list[bool]:
    chosen = []
    for _ in range(iterations):
        masked = guidance.choose((4, 3))
        chosen.append(masked)
        guidance.observe((4, 3), masked, seconds[masked], tokens[masked])
    return chosen


@pytest.mark.parametrize(
    ("seconds", "tokens", "better"),
    [
        ({True: 1.1, False: 1.0}, {True: 12, False: 10}, True),
        ({True: 1.3, False: 1.0}, {True: 12, False: 10}, False),
        ({True: 1.0, False: 1.0}, {True: 10, False: 10}, True),
    ],
)
def test_the_faster_way_is_kept(seconds: dict[bool, float], tokens: dict[bool, int], better: bool) -> None:
    guidance = DraftGuidance("auto")
    assert guidance.decision((4, 3)) is None
    measured = drive(guidance, 2 * (MEASURED + WARM_UP) + 2 * BLOCK, seconds, tokens)
    assert {True, False} == set(measured)
    assert guidance.decision((4, 3)) is better
    assert set(drive(guidance, 100, seconds, tokens)) == {better}
    assert guidance.decision((8, 3)) is None


def test_first_iterations_do_not_count() -> None:
    """A capture takes long; it says nothing of what follows."""
    guidance = DraftGuidance("auto")
    first = {True: WARM_UP, False: WARM_UP}
    for _ in range(4 * MEASURED):
        masked = guidance.choose((1, 3))
        slow = first[masked] > 0
        first[masked] -= 1
        guidance.observe((1, 3), masked, 1000.0 if slow and masked else 1.0, 11 if masked else 10)
    assert guidance.decision((1, 3)) is True


def test_a_decision_is_measured_again() -> None:
    guidance = DraftGuidance("auto")
    drive(guidance, 4 * MEASURED, {True: 2.0, False: 1.0}, {True: 10, False: 10})
    assert guidance.decision((4, 3)) is False
    drive(guidance, HOLD, {True: 1.0, False: 2.0}, {True: 10, False: 10})
    drive(guidance, 4 * MEASURED, {True: 1.0, False: 2.0}, {True: 10, False: 10})
    assert guidance.decision((4, 3)) is True


@pytest.mark.parametrize("setting", [True, False])
def test_a_setting_is_obeyed(setting: bool) -> None:
    guidance = DraftGuidance(setting)
    assert set(drive(guidance, 300, {True: 1.0, False: 9.0}, {True: 1, False: 1})) == {setting}
    assert guidance.decision((4, 3)) is setting

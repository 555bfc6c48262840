"""Each call that waits, or records what is waited for, is removed in turn: something notices every one of them, so that
one that is missing in the code is noticed, too. `tools/races` has what is removed, and what notices.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from races.sites import BASE, ordering_names, parsed, sites

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_removed_wait_is_noticed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "races"],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tools'}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_calls_are_found_by_walking_the_code() -> None:
    """By name, and through functions that do nothing else; a text that is joined is no such call."""
    found = {(site.path, site.function, site.text) for site in sites()}
    for expected in [
        ("guided/grammar_stream.py", "GrammarStream.apply_draft", "stream.wait(self.mask_event)"),
        ("guided/grammar_stream.py", "GrammarStream.extend_masks", "self._enter(stream)"),
        ("guided/grammar_stream.py", "GrammarStream.wait_proposals", "stream.wait(self.proposal_event)"),
        ("engine/runner/step.py", "decode_step", "grammar_stream.wait_proposals(stream)"),
        ("runtime/buffers.py", "PinnedRing._take", "slot[1].synchronize()"),
    ]:
        assert expected in found
    assert BASE < ordering_names(parsed().values()) >= {"_enter", "wait_proposals", "join", "receive"}
    assert not any("join(" in text and text.startswith(("'", '"')) for _, _, text in found)
    assert len(found) > 60

"""What make shows of commands that say much."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "progress.py"


@pytest.mark.parametrize(("status", "shown"), [(0, ""), (3, "one\ntwo\n")])
def test_all_is_shown_where_a_command_fails_and_nothing_where_it_does_not(status: int, shown: str) -> None:
    program = f"import sys; print('one'); print('two', file=sys.stderr); sys.exit({status})"
    command = [sys.executable, str(TOOL), sys.executable, "-u", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (status, shown)

"""What is found in programs in the style of TensorRT-LLM's examples: each says so itself, line by line.

`# ! kind name` behind a line is a finding there, always. `# ? kind name` is one as long as weft lacks the name, refuses
it or does it otherwise. There are no others.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from weft.migration import Finding, FindingKind, check_file
from weft.migration.verdict import State, judge, judge_class, other_default

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
MARK = re.compile(r"# ([!?]) (older name|\w+) ([\w.()=]+)")


def stands(name: str) -> bool:
    """Whether there is something to say of a name."""
    holder, _, last = name.rpartition(".")
    verdict = judge(holder, last) if holder else judge_class(name)
    is_other = bool(holder) and other_default(holder, last) is not None
    return verdict.state not in (State.HAS, State.NO_EFFECT, State.OWN) or is_other


def expected(program: Path) -> set[tuple[int, str, str]]:
    found = set()
    for at, line in enumerate(program.read_text().splitlines(), 1):
        for mark, kind, name in MARK.findall(line.replace("older ", "older name ")):
            if mark == "!" or stands(name):
                found.add((at, kind, name))
    return found


def plain(findings: list[Finding]) -> set[tuple[int, str, str]]:
    return {(one.line, str(one.kind), one.name) for one in findings}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_is_told_what_it_says_itself(program: Path) -> None:
    found = check_file(program)
    assert plain(found) == expected(program)
    assert all(one.file == str(program) and one.text for one in found)
    assert found == sorted(found)


def test_programs_show_every_kind() -> None:
    kinds = {one.kind for program in PROGRAMS for one in check_file(program)}
    assert kinds == set(FindingKind) - {
        FindingKind.OTHERWISE
    }  # weft means the same, as long as no table says else
    assert len(PROGRAMS) == 9


def test_programs_that_run_here_have_no_findings() -> None:
    """TensorRT-LLM's own, with another import and model, which `trtllm/test_port_programs.py` runs."""
    ported = sorted((Path(__file__).parents[1] / "executor" / "trtllm" / "programs").glob("*.py"))
    assert ported and [one for program in ported for one in check_file(program)] == []


def test_what_upstream_calls_is_known() -> None:
    """Of upstream's tests, ported, there is no name that the checker does not know."""
    ported = sorted((Path(__file__).parents[1] / "executor" / "trtllm").glob("test_port_*.py"))
    kinds = {one.kind for program in ported for one in check_file(program)}
    assert ported and kinds <= {FindingKind.REFUSED, FindingKind.LACKING, FindingKind.OTHERWISE}

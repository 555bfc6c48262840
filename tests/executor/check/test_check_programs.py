"""What is found in programs in the style of TensorRT-LLM's examples: each says so itself, line by line.

`# ! kind name` behind a line is a finding there, always. `# ? kind name` is one as long as weft lacks the name, refuses
it or does it otherwise. There are no others.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from weft.executor.check import Finding, Kind, check_file
from weft.executor.check.verdict import State, judge, judge_class, other_default

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
MARK = re.compile(r"# ([!?]) (older name|\w+) ([\w.()=]+)")


def stands(name: str) -> bool:
    """Whether there is something to say of a name, or of a method's parameter ("Executor.await_responses(id=...)")."""
    parts = re.sub(r"\((\w+)=\.\.\.\)", r".\1", name).split(".")
    holder = ".".join(parts[:-1])
    verdict = judge(holder, parts[-1]) if holder else judge_class(name)
    return verdict.state not in (State.HAS, State.OWN) or other_default(holder, parts[-1]) is not None


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
    assert kinds == set(Kind)
    assert len(PROGRAMS) == 9

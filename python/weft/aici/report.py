"""What a program leaves beside its text: its log, and the variables of its request."""

from __future__ import annotations

from typing import NamedTuple, cast

from weft import _core
from weft.grammar.base import Matcher


class ProgramReport(NamedTuple):
    """The end of a program's log, `WasmLimits.log_bytes` at most, and its request's variables by name."""

    log: str
    variables: dict[str, bytes]


def program_report(matcher: Matcher, num_tokens: int) -> ProgramReport | None:
    """What a program left of a text of so many tokens, without what its steps beyond them did, such as those of drafts;
    None for a matcher that is no program's. What is no UTF-8 in the log is replaced. At any time, on any thread.
    """
    found = _core.wasm_report(matcher, num_tokens)
    if found is None:
        return None
    log, variables = cast(tuple[bytes, list[tuple[bytes, bytes]]], found)
    return ProgramReport(log.decode(errors="replace"), {name.decode(): value for name, value in variables})

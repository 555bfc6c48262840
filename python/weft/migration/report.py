"""Formats findings as text or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from weft.migration.findings import Finding, FindingKind


def as_text(found: Mapping[str, Sequence[Finding]], wrong: Sequence[str]) -> str:
    """Return the findings by file, the errors of unreadable files (`wrong`), and a line of counts."""
    lines = [str(one) for findings in found.values() for one in findings]
    lines += wrong
    counted = Counter(one.kind for findings in found.values() for one in findings)
    said = ", ".join(f"{counted[kind]} {kind}" for kind in FindingKind if counted[kind])
    names = f"{len(found)} {'file' if len(found) == 1 else 'files'}"
    if found:
        lines.append(f"{names}: {said}" if said else f"{names}: nothing to change")
    return "\n".join(lines)


def as_json(found: Mapping[str, Sequence[Finding]], wrong: Sequence[str]) -> str:
    """Return the findings, and the errors of unreadable files (`wrong`), as a JSON object."""
    findings = [one.to_dict() for listed in found.values() for one in listed]
    return json.dumps({"findings": findings, "errors": list(wrong)}, indent=2)

"""Messages of weft's, which speak to who calls it in Python, as a client over HTTP may read them: in the names of JSON
fields, and without advice that only the server's owner can follow."""

from __future__ import annotations

import re

_WORDS = [
    (re.compile(pattern), words)
    for pattern, words in (
        (r" \((?:EngineConfig|CompileLimits)\.\w+(?:; of an executor: [\w.]+)?\)", ""),
        (r" of trial, half of CompileLimits\.\w+", ""),
        (r"more than the (\d+ MiB) of CompileLimits\.\w+", r"more than \1"),
        (r"lower WasmLimits\.memory_bytes or undo_bytes", "give it less memory"),
        (r"(?:, or|:) raise WasmLimits\.\w+(?: \(at most CompileLimits\.\w+\))?", ""),
        (
            r"give strict=False \(--no-strict\), which",
            "give strict: false (in response_format.json_schema, in guide or in a function), which",
        ),
        (r"\bmax_seq_len\b", "max_model_len"),
        (r"\bGuide\.(?=[a-z])", "guide."),
        (r"(?<=\bor )None\b", "null"),
        (r"(?<=\bmay be )None\b", "null"),
    )
]


def for_clients(message: str) -> str:
    """The same as a client is told it."""
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    return message

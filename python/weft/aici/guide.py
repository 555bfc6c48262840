"""Compiles `Guide.wasm`, starts its program for each request, and reports the program's log and variables."""

from __future__ import annotations

from typing import NamedTuple

from weft import _core
from weft.aici.audit import audit
from weft.aici.compile import bind, compiled
from weft.aici.limits import WasmLimits
from weft.aici.source import WasmSource
from weft.aici.trie import trie_of
from weft.errors import GuideError
from weft.grammar.base import NO_REQUEST, CompiledGuide, CompileParts, Matcher, Opening
from weft.grammar.guide import Guide
from weft.grammar.vocabulary.tokenizer import token_texts


class CompiledWasm:
    """A compiled WASM program. Starting it for a request may take `WasmLimits.start_ms`, so worker threads call `open`
    before the sequence gets a slot (`opens_ahead`).

    `sequence_bytes` is the most memory that a sequence may take: the program's memory, a copy of it to find a step's
    changes, and the undo data for rollbacks.
    """

    opens_ahead = True
    memory_settings = "WasmLimits.memory_bytes or undo_bytes"
    backend = None
    notes = ()

    def __init__(self, guide: Guide, program: _core.AiciProgram, vocab_size: int, memory_bytes: int) -> None:
        self.guide = guide
        self.vocab_size = vocab_size
        self.memory_bytes = memory_bytes
        limits: WasmLimits = guide.payload.limits
        self.sequence_bytes = 2 * limits.memory_bytes + limits.undo_bytes
        self._program = program
        self._argument = guide.payload.argument.encode()

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """Start the program on the request's prompt. Raises `GuideError` if the program fails."""
        return self.open(opening)

    def open(self, opening: Opening) -> Matcher:
        """Start the matcher of a request's first sequence. Its forks share its variables. Raises `GuideError`."""
        try:
            return self._program.start(self._argument, list(opening.prompt), _core.AiciVariables())
        except GuideError:
            raise
        except Exception as error:
            raise GuideError(str(error)) from error


def compile_wasm(guide: Guide, parts: CompileParts) -> CompiledGuide:
    """Compile a guide of `Guide.wasm`. Raises `GuideError`."""
    source: WasmSource = guide.payload
    vocabulary = parts.vocabulary
    bind()
    wasm = audit(source.module, source.limits)
    artefact = compiled(wasm, source.limits, source.is_trusted, parts.time_left_s)
    trie = trie_of(vocabulary)
    try:
        program = _core.AiciProgram(
            artefact,
            trie,
            vocabulary.vocab_size,
            list(vocabulary.end_ids),
            token_texts(vocabulary),
            source.limits.of_programs(),
        )
    except ValueError as error:
        raise GuideError(str(error)) from error
    return CompiledWasm(guide, program, vocabulary.vocab_size, len(artefact) + len(source.module))


class ProgramReport(NamedTuple):
    """The tail of a program's log, at most `WasmLimits.log_bytes`, and the variables of its request by name."""

    log: str
    variables: dict[str, bytes]


def program_report(matcher: Matcher, num_tokens: int) -> ProgramReport | None:
    """The report of a program after the first `num_tokens` tokens of its answer. Later steps, such as those of rejected
    drafts, do not appear in it. None if the matcher is not a WASM program. Invalid UTF-8 in the log is replaced.
    Thread-safe, even while the program runs."""
    report = matcher.report(num_tokens)
    return None if report is None else ProgramReport(*report)

"""`Guide.wasm`, compiled: a program that is started for each request."""

from __future__ import annotations

from weft import _core
from weft.aici.audit import audit
from weft.aici.compile import bind, compiled
from weft.aici.source import WasmSource
from weft.aici.trie import trie_of
from weft.errors import GuideError
from weft.grammar.base import NO_REQUEST, CompiledGuide, CompileParts, Matcher, Opening
from weft.grammar.guide import Guide
from weft.grammar.vocabulary.tokenizer import token_texts
from weft.grammar.wasm_limits import WasmLimits


class CompiledWasm:
    """Starts its program for each request, which may take it up to `WasmLimits.start_ms`: `open` does that ahead, so
    that it is not the engine's thread that waits. `sequence_bytes` is what a sequence may hold: the program's memory, a
    copy of it to find out what a step changed, and what is kept to take tokens back."""

    opens_ahead = True
    backend = None
    notes = ()

    def __init__(self, guide: Guide, program: _core.WasmProgram, vocab_size: int, memory_bytes: int) -> None:
        self.guide = guide
        self.vocab_size = vocab_size
        self.memory_bytes = memory_bytes
        limits: WasmLimits = guide.payload.limits
        self.sequence_bytes = 2 * limits.memory_bytes + limits.undo_bytes
        self._program = program
        self._argument = guide.payload.argument.encode()

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A program that was started with the request's prompt. Raises `GuideError` where it fails."""
        return self.open(opening)

    def open(self, opening: Opening) -> Matcher:
        """The same, for the first of a request's sequences; the others are copies, which share its variables."""
        try:
            return self._program.start(self._argument, list(opening.prompt), _core.WasmVariables())
        except GuideError:
            raise
        except Exception as error:
            raise GuideError(str(error)) from error


def compile_wasm(guide: Guide, parts: CompileParts) -> CompiledGuide:
    """For `Guide.wasm`."""
    source: WasmSource = guide.payload
    vocabulary = parts.vocabulary
    bind()
    wasm = audit(source.module, source.limits)
    artefact = compiled(wasm, source.limits, source.is_trusted, parts.time_left_s)
    trie = trie_of(vocabulary)
    try:
        program = _core.WasmProgram(
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

"""`Guide.wasm`, compiled: a program that is started for each request."""

from __future__ import annotations

from weft import _core
from weft.errors import GuideError
from weft.grammar.base import NO_REQUEST, CompiledGuide, CompileParts, Matcher, Opening
from weft.grammar.guide import Guide
from weft.grammar.tokenizer import token_texts
from weft.grammar.wasm.audit import audit
from weft.grammar.wasm.compile import bind, compiled
from weft.grammar.wasm.source import WasmSource
from weft.grammar.wasm.trie import trie_of


class CompiledWasm:
    """Starts its program for each request, which may take it up to `WasmLimits.start_ms`: `open` does that ahead, so
    that it is not the engine's thread that waits."""

    opens_ahead = True
    backend = None

    def __init__(self, guide: Guide, program: _core.WasmProgram, vocab_size: int, memory_bytes: int) -> None:
        self.guide = guide
        self.vocab_size = vocab_size
        self.memory_bytes = memory_bytes
        self._program = program
        self._argument = guide.payload.argument.encode()

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A program that was started with the request's prompt. Raises `GuideError` where it fails."""
        return self.open(opening, 1)[0]

    def open(self, opening: Opening, count: int) -> list[Matcher]:
        """As many for the sequences of one request, which share its variables: one starts, the others are copies."""
        try:
            first = self._program.start(self._argument, list(opening.prompt), _core.WasmVariables())
            return [first, *(first.fork() for _ in range(count - 1))]
        except GuideError:
            raise
        except Exception as error:
            raise GuideError(str(error)) from error


def compile_wasm(guide: Guide, parts: CompileParts) -> CompiledGuide:
    """For `Guide.wasm`."""
    source: WasmSource = guide.payload
    vocabulary = parts.vocabulary
    bind()
    artefact = compiled(audit(source.module, source.limits), source.limits, source.is_trusted)
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

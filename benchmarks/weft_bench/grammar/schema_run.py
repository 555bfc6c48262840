"""Runs one schema with one backend: compiles it, then walks every instance through the matcher, and times each call.

`serve` runs in a separate process (`schema_process.py`), so that endless work can be killed, and a crash becomes a
row of the report.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from weft.errors import GuideError, WeftError
from weft.grammar import CompiledGuide, Guide, GuideCompiler, Vocabulary
from weft_bench.grammar.schema_files import SchemaFile, TextTokens, text_of


@dataclass(frozen=True)
class Settings:
    """The settings of a judge. `tokenizer` is a folder with a tokenizer.json. Without it, instances are tokenized
    greedily with the longest tokens that fit."""

    backend: str
    vocabulary: Vocabulary
    tokenizer: Path | None = None
    style: str = "spaced"
    any_order: bool = False
    strict: bool = True
    open_objects: bool = False
    memory_bytes: int = 8 << 30


@dataclass(frozen=True)
class Compiled:
    """The cost of compiling: wall and CPU seconds from the schema to its first matcher, the bytes that the result
    takes, and the number of keywords that are not enforced."""

    seconds: float
    cpu_seconds: float
    memory_bytes: int
    num_ignored: int


@dataclass
class Walked:
    """The walks of a file's instances: verdicts, and nanoseconds of CPU time for every mask and every accepted
    token."""

    verdicts: list[tuple[bool, bool]] = field(default_factory=list)  # valid, accepted
    fill_ns: list[int] = field(default_factory=list)
    accept_ns: list[int] = field(default_factory=list)
    matcher_ns: list[int] = field(default_factory=list)  # to create each instance's matcher
    num_disagreements: int = 0
    errors: list[str] = field(default_factory=list)


class Judge:
    """Compiles schemas with one backend, and walks their instances."""

    def __init__(self, settings: Settings) -> None:
        self._vocabulary = settings.vocabulary
        self._style = settings.style
        self._settings = settings
        tokenizer = settings.tokenizer and Tokenizer.from_file(str(settings.tokenizer / "tokenizer.json"))
        self._tokens = TextTokens(settings.vocabulary, tokenizer)
        self._compiler = GuideCompiler(settings.vocabulary, backend=settings.backend)
        self._row = np.zeros(-(-settings.vocabulary.vocab_size // 32), dtype=np.int32)

    def compile(self, schema: Any) -> tuple[CompiledGuide, Compiled]:
        """Compile a schema. Raises `GuideError` if the backend refuses it."""
        start, cpu = time.perf_counter(), time.process_time()
        given = self._settings
        guide = Guide.json_schema(
            schema,
            any_order=given.any_order,
            strict=given.strict,
            open_objects=given.open_objects,
            max_whitespace=8,  # as in the published figures
        )
        compiled = self._compiler.compile_part(guide)
        compiled.matcher()
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        return compiled, Compiled(seconds, cpu_seconds, compiled.memory_bytes, len(compiled.notes))

    def walk(self, compiled: CompiledGuide, tests: tuple[tuple[bool, Any], ...]) -> Walked:
        """Walk instances. An instance is accepted if the matcher accepts all of its tokens and an end token."""
        walked = Walked()
        for valid, data in tests:
            tokens = [*self._tokens.encode(text_of(data, self._style)), self._vocabulary.end_ids[0]]
            start = time.thread_time_ns()
            matcher = compiled.matcher()
            walked.matcher_ns.append(time.thread_time_ns() - start)
            try:
                taken, disagreements, fill_ns, accept_ns = matcher.walk(tokens, self._row, timed=True)
            except WeftError as error:  # a limit of the backend
                walked.errors.append(str(error))
                walked.verdicts.append((valid, False))
                continue
            walked.verdicts.append((valid, taken == len(tokens)))
            walked.num_disagreements += disagreements
            walked.fill_ns += fill_ns
            walked.accept_ns += accept_ns
        return walked


def serve(connection: Connection, settings: Settings, log: str) -> None:
    """Answer every `SchemaFile` with a `Compiled` and a `Walked`, or with the kind and text of an error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 2)  # stderr also gets messages of libraries and crashes
    resource.setrlimit(resource.RLIMIT_AS, (settings.memory_bytes, settings.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    judge = Judge(settings)
    connection.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            answer(connection, judge, connection.recv())


def answer(connection: Connection, judge: Judge, file: SchemaFile) -> None:
    """Judge one file, and send the result."""
    try:
        compiled, facts = judge.compile(file.schema)
        connection.send(facts)
        connection.send(judge.walk(compiled, file.tests))
    except GuideError as error:
        connection.send(("refused", str(error)))
    except Exception as error:
        connection.send(("error", f"{type(error).__name__}: {error}"))

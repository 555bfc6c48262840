"""The flight recorder: keeps the grammar operations of the last iterations in memory, and writes them to a file on
demand.

The guided state records the operations itself (`csrc/guided/recording.cpp`), so recording an iteration costs the
engine's thread no time. `weft replay FILE` repeats a recording.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import abc
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from weft.core import Output
from weft.engine.sequence import Sequence
from weft.errors import InputError
from weft.grammar.base import Matcher
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.guided.flight import Operation, operations
from weft.guided.recorded_guide import RecordedGuide
from weft.guided.recording import RecordedEdit, RecordedRequest, Recording
from weft.guided.state import GuidedState
from weft.version import __version__

MAX_BYTES = 64 << 20
"""The default limit on a recorder's memory."""

GATHER_S = 0.05
"""The time in seconds that the writer waits after a failure, so that other failures of the iteration share the file."""


@dataclass
class _Watched:
    """The record of one sequence.

    slot, since: the slot that the sequence got last, and the epoch at which it got it.
    matchers: the serial numbers of its matchers.
    room, prompt: the arguments with which its matchers started.
    finished_at: the epoch at which the recorder first noticed that the sequence had finished.
    """

    id: int
    output: Output
    guide: RecordedGuide | None
    slot: int
    since: int
    matchers: list[int]
    room: int | None
    prompt: abc.Sequence[int]
    edits: list[RecordedEdit] = field(default_factory=list)
    finished_at: int | None = None


class FlightRecorder:
    """Keeps the last `iterations` iterations of a grammar state, or fewer if `max_bytes` can't hold them. By default
    there is memory for `iterations` iterations with every slot in use, up to 64 MiB. The first token after a prompt
    counts as an iteration.

    The engine's thread calls

    - `watch(sequence, slot, matcher)` whenever a sequence gets a slot, before the push that attaches its matcher (None
      without a guide). This includes a slot after preemption or after an edit of the text.
    - `failed(sequence)` when a sequence ends with an error.
    - `close()` when the engine closes, with nothing in flight.

    Any thread may call `write` and `recording`. Make a recorder while nothing is in flight. While it exists, the
    state's callbacks take about 0.6 us more for each mask row of 131072 tokens.

    With a `directory`, a failure writes a file there, on a separate thread. The directory is created if needed.
    Failures of one iteration share a file. After `max_files` files, no more are written. `files` lists the files
    written.

    `model` is the model's directory (None: weft-tiny). `sources` names the host's sources of drafts ("forced",
    "ngram").

    Raises `InputError` if the directory is not writable, or if `max_bytes` can't hold one iteration.
    """

    def __init__(
        self,
        state: GuidedState,
        vocabulary: Vocabulary,
        *,
        model: str | None = None,
        sources: tuple[str, ...] = (),
        iterations: int = 256,
        max_bytes: int | None = None,
        directory: str | Path | None = None,
        max_files: int = 16,
    ) -> None:
        if iterations < 1:
            raise InputError(f"iterations is {iterations}; a recorder keeps at least 1")
        self.directory = None if directory is None else Path(directory)
        if self.directory is not None:
            _make_writable(self.directory)
        max_bytes = default_bytes(state, iterations) if max_bytes is None else max_bytes
        try:
            state.record(max_bytes)
        except ValueError as error:
            raise InputError(f"max_bytes is {max_bytes}: {error}") from error
        self.state = state
        self.iterations = iterations
        self.files: list[Path] = []
        self._vocabulary = vocabulary
        self._model = model
        self._sources = sources
        self._max_files = max_files
        self._watched: dict[int, _Watched] = {}
        self._prune_at = self._prune_from = 2 * state.num_slots + 64
        self._lock = threading.Lock()  # over `_watched`, `_failed` and `_writer`
        self._failed: dict[int, Output] = {}
        self._writer: threading.Thread | None = None

    def watch(self, sequence: Sequence, slot: int, matcher: Matcher | None) -> None:
        """Note that a sequence gets a slot, to which `matcher` will be attached."""
        with self._lock:
            since = self.state.pushed_epoch
            watched = self._watched.get(sequence.id)
            if watched is None:
                compiled = sequence.guide.compiled if sequence.guide is not None else None
                guide = None if compiled is None else RecordedGuide.of(compiled.guide, compiled.backend)
                room = sequence.guide.room if sequence.guide is not None else None
                prompt = sequence.prompt if guide is not None and guide.payload is not None else ()
                watched = _Watched(sequence.id, sequence.output, guide, slot, since, [], room, prompt)
                self._watched[sequence.id] = watched
            watched.slot, watched.since = slot, since
            edits = sequence.guide.edits if sequence.guide is not None else []
            watched.edits += [RecordedEdit(since, *edit) for edit in edits[len(watched.edits) :]]
            if matcher is not None and matcher.serial not in watched.matchers:
                watched.matchers.append(matcher.serial)
            if len(self._watched) > self._prune_at:
                self._prune()

    def failed(self, sequence: Sequence) -> None:
        """Note that a sequence ended with an error. If it ever had a slot and there is a directory, write a file."""
        if self.directory is None or len(self.files) >= self._max_files:
            return
        with self._lock:
            if sequence.id not in self._watched:
                return
            self._failed[sequence.id] = sequence.output
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_failed, name="weft-recorder")
                self._writer.start()

    def write(self, path: str | Path, reason: str = "on demand") -> Path:
        """Write the recording to a file, compressed if its name ends in ".gz", and return its path. Raises `OSError` if
        that fails."""
        self.recording(reason).save(path)
        return Path(path)

    def recording(self, reason: str = "on demand") -> Recording:
        """Make a recording of the last iterations."""
        window = last_iterations(operations(self.state.recorded()), self.iterations)
        seen = {entry.matcher for operation in window for entry in operation.entries}
        first = window[0].epoch if window else 0
        with self._lock:
            watched = [w for w in self._watched.values() if self._appears(w, seen, first)]
        guides: dict[RecordedGuide, int] = {}
        requests = tuple(_record(w, guides) for w in watched)
        return Recording(
            reason=reason,
            versions=_versions(),
            model=self._model,
            fingerprint=self._vocabulary.fingerprint,
            vocab_size=self._vocabulary.vocab_size,
            end_ids=self.state.end_token_ids,
            num_slots=self.state.num_slots,
            max_drafts=self.state.max_drafts,
            sources=self._sources,
            guides=tuple(guides),
            requests=requests,
            operations=tuple(window),
        )

    def close(self) -> None:
        """Wait until all files are written, and stop recording. Nothing may be in flight."""
        with self._lock:
            writer = self._writer
        if writer is not None:
            writer.join()
        self.state.record(0)
        self._watched.clear()

    def _appears(self, watched: _Watched, seen: set[int], first_epoch: int) -> bool:
        """Whether a sequence takes part in the recorded iterations. An unguided sequence has no entries in them. It
        counts unless it is known to have ended before the first of them."""
        if watched.matchers:
            return not seen.isdisjoint(watched.matchers)
        self._note_finished(watched)
        return watched.finished_at is None or watched.finished_at >= first_epoch

    def _note_finished(self, watched: _Watched) -> None:
        if watched.finished_at is None and watched.output.finish_reason is not None:
            watched.finished_at = self.state.pushed_epoch

    def _prune(self) -> None:
        """Forget sequences that ended before the oldest iteration that can still be recorded."""
        oldest = max(self.state.epoch - self.iterations, 0)
        for watched in self._watched.values():
            self._note_finished(watched)
        self._watched = {
            id: w for id, w in self._watched.items() if w.finished_at is None or w.finished_at >= oldest
        }
        self._prune_at = max(self._prune_from, 2 * len(self._watched))

    def _write_failed(self) -> None:
        gathered = threading.Event()
        while True:
            gathered.wait(GATHER_S)
            with self._lock:
                failed, self._failed = self._failed, {}
                if not failed or len(self.files) >= self._max_files:
                    self._writer = None
                    return
            reason = "; ".join(f"request {id}: {_error_text(output)}" for id, output in failed.items())
            assert self.directory is not None
            path = self.directory / f"flight-{os.getpid()}-{min(failed)}.json.gz"
            try:
                self.files.append(self.write(path, reason))
            except OSError as error:
                warnings.warn(
                    f"the flight recorder can't write {path}: {error}", RuntimeWarning, stacklevel=1
                )


def default_bytes(state: GuidedState, iterations: int) -> int:
    """The memory in bytes that `iterations` iterations need in the worst case: every slot is in use, every draft is
    accepted, and the grammar masks drafts. It is capped at `MAX_BYTES`, but is enough for at least two iterations."""
    drafts = state.max_drafts
    extends = max(drafts - 1, 0) * (10 + 2 * drafts)  # drafts are extended one by one
    words = state.num_slots * (4 * 10 + 8 * drafts + extends) + 64
    return 8 * words * min(max(iterations, 2), max(2, MAX_BYTES // (8 * words)))


def last_iterations(all_operations: list[Operation], count: int) -> list[Operation]:
    """The operations of the last `count` iterations. Each iteration starts with a snapshot, the operation "fetch".
    Operations before the first snapshot are dropped, because their own snapshot is already overwritten."""
    starts = [i for i, operation in enumerate(all_operations) if operation.name == "fetch"]
    return all_operations[starts[-count:][0] :] if starts else []


def _record(watched: _Watched, guides: dict[RecordedGuide, int]) -> RecordedRequest:
    output = watched.output
    return RecordedRequest(
        watched.id,
        watched.slot,
        watched.since,
        tuple(watched.matchers),
        None if watched.guide is None else guides.setdefault(watched.guide, len(guides)),
        tuple(output.token_ids),
        output.finish_reason,
        _error_text(output) if output.error is not None else None,
        watched.room,
        tuple(watched.prompt),
        tuple(watched.edits),
    )


def _error_text(output: Output) -> str:
    return f"{type(output.error).__name__}: {output.error}"


def _versions() -> dict[str, str]:
    versions = {"weft": __version__}
    for name in ("xgrammar", "llguidance", "wasmtime", "torch"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return versions


def _make_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"directory is {str(directory)!r}, which can't be made: {error.strerror}; give another"
        ) from None
    if not os.access(directory, os.W_OK):
        raise InputError(f"directory is {str(directory)!r}; give one that can be written to")

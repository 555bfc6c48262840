"""Recordings as files: the operations of a guided state, their requests, and everything else that a replay needs.

A file is JSON, gzipped if its name ends in `.gz`. It contains users' data: the guides, the answers, and the prompts of
requests whose guide is a program.
"""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from weft.core.files import write_whole
from weft.errors import InputError
from weft.guided.flight import Operation, integers
from weft.guided.recorded_guide import RecordedGuide

FORMAT = "weft-flight-1"

_TYPES: dict[str, type | tuple[type, ...]] = {
    "reason": str,
    "versions": dict,
    "model": (str, type(None)),
    "fingerprint": str,
    "vocab_size": int,
    "end_ids": list,
    "num_slots": int,
    "max_drafts": int,
    "sources": list,
    "guides": list,
    "requests": list,
    "operations": list,
}
"""The JSON types of a file's fields."""


@dataclass(frozen=True)
class RecordedEdit:
    """An edit of a request's text by its matcher.

    After the first `at` tokens of the answer, the tokens `dropped` were removed, and `num_appended` tokens were
    appended. The request has the edited text in the slots that it got after epoch `since`.
    """

    since: int
    at: int
    dropped: tuple[int, ...]
    num_appended: int


@dataclass(frozen=True)
class RecordedRequest:
    """A request of a recording.

    slot: its last slot, which it had from the first iteration after epoch `since`.
    matchers: the serial numbers of its matchers.
    guide: an index into the recording's guides; None without a guide.
    tokens: its answer so far.
    error: the failure that ended it.
    room: the number of tokens in which its answer had to be complete; None without such a limit.
    prompt: the tokens with which its program was started; empty without a program.
    edits: the edits of its text, in order.
    """

    id: int
    slot: int
    since: int
    matchers: tuple[int, ...]
    guide: int | None
    tokens: tuple[int, ...]
    finish_reason: str | None = None
    error: str | None = None
    room: int | None = None
    prompt: tuple[int, ...] = ()
    edits: tuple[RecordedEdit, ...] = ()


@dataclass(frozen=True)
class Recording:
    """A recording of the last operations of an engine's grammar.

    reason: why it was written.
    versions: the versions of the packages, by name.
    model: the model's directory (None: weft-tiny).
    fingerprint: the fingerprint of the model's vocabulary of `vocab_size` tokens.
    end_ids: the tokens that the state allows if a mask would allow none.
    num_slots, max_drafts: the sizes of the state.
    sources: the names of the host's sources of drafts.
    """

    reason: str
    versions: dict[str, str]
    model: str | None
    fingerprint: str
    vocab_size: int
    end_ids: tuple[int, ...]
    num_slots: int
    max_drafts: int
    sources: tuple[str, ...]
    guides: tuple[RecordedGuide, ...]
    requests: tuple[RecordedRequest, ...]
    operations: tuple[Operation, ...]

    def request_of(self, matcher: int) -> RecordedRequest | None:
        """The request that has the matcher with this serial number, or None."""
        return next((r for r in self.requests if matcher in r.matchers), None)

    @property
    def num_iterations(self) -> int:
        """The number of iterations, which is the number of fetches."""
        return sum(operation.name == "fetch" for operation in self.operations)

    def save(self, path: str | Path) -> None:
        """Write the recording to a file. On failure it raises `OSError` and leaves no file."""
        path = Path(path)
        data = {
            "format": FORMAT,
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "guides": [guide.to_json() for guide in self.guides],
            "requests": [asdict(request) for request in self.requests],
            "operations": [operation.to_json() for operation in self.operations],
        }
        text = json.dumps(data, separators=(",", ":")).encode()
        write_whole(path, gzip.compress(text, 6) if path.suffix == ".gz" else text)

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read a file that `save` wrote. Raises `InputError` for any other file, and `OSError` if it can't be read."""
        path = Path(path)
        try:
            content = path.read_bytes()
            if path.suffix == ".gz":
                content = gzip.decompress(content)
            data = json.loads(content)
            if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
                raise InputError(f"its format is not {FORMAT}")
            return cls._of(data)
        except (
            KeyError,
            TypeError,
            ValueError,
            OverflowError,  # a number is infinite
            RecursionError,  # the JSON is nested too deeply
            EOFError,
            zlib.error,
            gzip.BadGzipFile,
        ) as error:
            raise InputError(
                f"{path}: not a recording that weft's flight recorder wrote ({error!r}); give such a file, or the "
                "version of weft that wrote it"
            ) from error

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Recording:
        wrong = [name for name, kind in _TYPES.items() if not isinstance(data[name], kind)]
        if wrong:
            raise InputError(f"its {wrong[0]} is a {type(data[wrong[0]]).__name__}")
        recording = cls(
            data["reason"],
            {name: str(version) for name, version in data["versions"].items()},
            data["model"],
            data["fingerprint"],
            data["vocab_size"],
            integers(data["end_ids"]),
            data["num_slots"],
            data["max_drafts"],
            tuple(str(name) for name in data["sources"]),
            tuple(RecordedGuide.from_json(guide) for guide in data["guides"]),
            tuple(_request_of(request) for request in data["requests"]),
            tuple(Operation.from_json(operation) for operation in data["operations"]),
        )
        recording._check()
        return recording

    def _check(self) -> None:
        """Raise `InputError` unless the sizes, requests and operations are consistent."""
        if self.num_slots < 1 or self.max_drafts < 0 or self.vocab_size < 1 or not self.end_ids:
            raise InputError("it needs slots, a vocabulary and end tokens, and no negative number of drafts")
        for request in self.requests:
            if request.guide is not None and not 0 <= request.guide < len(self.guides):
                raise InputError(f"request {request.id} has guide {request.guide}, which is not in the file")
            dropped = [token for edit in request.edits for token in edit.dropped]
            tokens = [*request.prompt, *request.tokens, *dropped]
            if any(not 0 <= token < self.vocab_size for token in tokens):
                raise InputError(f"request {request.id} has a token that is not in the vocabulary")
        if self.operations and self.operations[0].name != "fetch":
            raise InputError("its first operation is no fetch")
        for operation in self.operations:
            slots = [*operation.slots, *operation.attached, *(entry.slot for entry in operation.entries)]
            if any(not 0 <= slot < self.num_slots for slot in slots):
                raise InputError(
                    f"iteration {operation.epoch} names a slot that is not in 0..{self.num_slots - 1}"
                )
            self._check_lengths(operation)
        epochs = [o.epoch for o in self.operations if o.name == "fetch" and o.argument == 0]
        if any(before >= after for before, after in itertools.pairwise(epochs)):
            raise InputError("its iterations are not in order")

    def _check_lengths(self, operation: Operation) -> None:
        """Raise `InputError` if the operation's argument is out of range, or if one of its entries has a wrong
        length."""
        where, drafts = f"iteration {operation.epoch}", self.max_drafts
        lowest = {"extend": 1, "extend_through": 0}.get(operation.name)
        if lowest is not None and not lowest <= operation.argument <= drafts:
            raise InputError(
                f"{where}: {operation.name} of {operation.argument} is not in {lowest}..{drafts}"
            )
        if operation.name == "release" and not 0 <= operation.argument < self.num_slots:
            raise InputError(f"{where} releases slot {operation.argument}; there are {self.num_slots}")
        num_inputs = {
            "extend": range(1, 2),
            "extend_through": range(operation.argument, operation.argument + 1),
            "commit": range(1, drafts + 3),
        }.get(operation.name, range(1))
        for entry in operation.entries:
            fits = (
                len(entry.taken) <= drafts
                and len(entry.rows) <= drafts + 1
                and len(entry.inputs) in num_inputs
            )
            if not fits:
                raise InputError(f"{where}: the entry of slot {entry.slot} has a wrong length")


def _request_of(data: dict[str, Any]) -> RecordedRequest:
    return RecordedRequest(
        int(data["id"]),
        int(data["slot"]),
        int(data["since"]),
        integers(data["matchers"]),
        None if data["guide"] is None else int(data["guide"]),
        integers(data["tokens"]),
        data["finish_reason"],
        data["error"],
        None if data.get("room") is None else int(data["room"]),
        integers(data.get("prompt", ())),
        tuple(_edit_of(edit) for edit in data.get("edits", data.get("splices", ()))),
    )


def _edit_of(data: dict[str, Any]) -> RecordedEdit:
    # Older versions called edits "splices", and their last two fields "taken" and "num_put".
    names = ("dropped", "num_appended") if "dropped" in data else ("taken", "num_put")
    return RecordedEdit(int(data["since"]), int(data["at"]), integers(data[names[0]]), int(data[names[1]]))

"""Finds the request of each slot in a recording, and the slots that can be replayed.

A recording begins while requests run. Their new matchers first accept the text that was committed by then, and take the
recorded drafts. A slot is left out, with a note, as long as it holds a request that can't be restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from weft.errors import WeftError
from weft.grammar.base import CompiledGuide, Matcher, Opening
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.kinds.closing import closing_matcher
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.guided.flight import SlotEntry
from weft.guided.recording import RecordedRequest, Recording

Place = tuple[int, int]
"""The index of an operation, and a slot."""

MAX_APPENDED = 1 << 16
"""The maximum number of tokens that one edit appends, as in the engine."""


@dataclass(frozen=True)
class SlotHolder:
    """A matcher to make for `request`, with the first `position` tokens of its answer as of iteration `epoch`."""

    request: RecordedRequest
    compiled: CompiledGuide
    position: int
    epoch: int

    def matcher(self) -> Matcher:
        """Make a new matcher. Raises `RefusedAnswer` if the guide refuses the recorded answer."""
        request = self.request
        opening = Opening(request.prompt, request.room)
        try:
            closes = request.room is not None
            matcher = closing_matcher(self.compiled, opening) if closes else self.compiled.matcher(opening)
            for i, token in enumerate(self._taken()):
                if not matcher.accept(token):
                    raise RefusedAnswer(request, f"does not take token {i + 1} of its answer, {token}")
                if matcher.has_edit:
                    matcher.edit(MAX_APPENDED)
        except WeftError as error:
            raise RefusedAnswer(request, f"fails while it reads its answer: {error}") from error
        return matcher

    def _taken(self) -> list[int]:
        """Return the tokens that the matcher accepted up to iteration `epoch`. They include tokens that edits dropped
        later, but not tokens that edits appended."""
        tokens, taken, begin = self.request.tokens, [], 0
        for edit in self.request.edits:
            if edit.since < self.epoch:
                taken += [*tokens[begin : edit.at], *edit.dropped]
                begin = edit.at + edit.num_appended
        return [*taken, *tokens[begin : self.position]]


class RefusedAnswer(Exception):
    """The guide of `request` does not accept its recorded answer."""

    def __init__(self, request: RecordedRequest, what: str) -> None:
        super().__init__(f"its guide {what}")
        self.request = request


@dataclass
class Tenancies:
    """The requests of a recording's slots.

    - `seeds`: the slots in use when the recording began, with their state at that time.
    - `comes`: the matchers that are attached later, by operation and slot.
    - `compared`: the operations and slots whose results are compared.
    - `notes`: the parts that are left out, with the reason.
    """

    seeds: dict[int, tuple[SlotHolder, SlotEntry]] = field(default_factory=dict)
    comes: dict[Place, SlotHolder] = field(default_factory=dict)
    compared: dict[Place, SlotHolder] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def tenancies(recording: Recording, vocabulary: Vocabulary) -> Tenancies:
    """Assign requests to slots, and compile their guides."""
    found = Tenancies()
    guides = _compile(recording, vocabulary)
    holders: dict[int, SlotHolder | None] = {}  # by slot; None if it is left out
    for place, operation in enumerate(recording.operations):
        for slot in operation.attached:
            holders.pop(slot, None)
        for entry in operation.entries:
            if entry.matcher == 0:
                continue
            slot = entry.slot
            if slot not in holders:
                attaches = operation.attached.get(slot, False)
                tenant, note = _tenant(recording, guides, entry, operation.epoch, attaches)
                holders[slot] = tenant
                if note:
                    found.notes.append(f"iteration {operation.epoch}, slot {slot}: {note}; left out")
                elif tenant is not None and attaches:
                    found.comes[place, slot] = tenant
                elif tenant is not None:
                    found.seeds[slot] = tenant, entry
            tenant = holders[slot]
            # Wall-clock time decides whether a guide exceeds its time limit, so a replay can't reproduce that.
            if tenant is not None and entry.status == "time_limit":
                found.notes.append(
                    f"iteration {operation.epoch}, slot {slot}: request {tenant.request.id} ran into the time limit "
                    "of guides, which is not done again; left out from here on"
                )
                holders[slot] = tenant = None
            if tenant is not None:
                found.compared[place, slot] = tenant
    return found


def _compile(recording: Recording, vocabulary: Vocabulary) -> Mapping[int, CompiledGuide | str]:
    """Compile each guide with the library that the recorded engine used. A string is the reason why a guide can't be
    compiled."""
    compiled: dict[int, CompiledGuide | str] = {}
    compilers: dict[str, GuideCompiler] = {}
    with ExitStack() as stack:
        for i, recorded in enumerate(recording.guides):
            guide, backend = recorded.guide(), recorded.backend or "xgrammar"
            if guide is None:
                compiled[i] = (
                    f"its guide is an object of the program ({recorded.kind}), which a file does not keep"
                )
                continue
            try:
                if backend not in compilers:
                    compilers[backend] = stack.enter_context(GuideCompiler(vocabulary, backend=backend))
                compiled[i] = compilers[backend].compile(guide)
            except WeftError as error:
                compiled[i] = f"its guide does not compile: {error}"
    return compiled


def _tenant(
    recording: Recording,
    guides: Mapping[int, CompiledGuide | str],
    entry: SlotEntry,
    epoch: int,
    attaches: bool,
) -> tuple[SlotHolder | None, str]:
    """Return the request of a slot, or the reason that it is not replayed."""
    request = recording.request_of(entry.matcher)
    if request is None or request.guide is None:
        return None, f"matcher {entry.matcher} belongs to no request that the recorder was told of"
    compiled = guides[request.guide]
    if isinstance(compiled, str):
        return None, f"request {request.id}: {compiled}"
    if not attaches and entry.status:
        return None, f"request {request.id} had failed ({entry.status}) before the recording begins"
    if entry.position > len(request.tokens):
        return None, (
            f"request {request.id} had ended before the recording begins: {entry.position} tokens were committed, its "
            f"answer has {len(request.tokens)}"
        )
    return SlotHolder(request, compiled, entry.position, epoch), ""

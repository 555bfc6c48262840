"""The runner's part for prompts: slots become requests', and parts of prompts are read."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from functools import partial
from typing import Protocol

from weft.engine.device.results import OfferBuffers, note_logprobs, note_offers
from weft.engine.device.state import StepBuffers
from weft.engine.processors.host import HostRows, HostWork
from weft.engine.sequence import Sequence, Stage
from weft.engine.step.attachments import Attachments
from weft.engine.step.graphs import StepGraphs
from weft.engine.step.in_flight import InFlightBatch
from weft.engine.step.opening import PromptRow, SlotOpener, guarded, open_rows
from weft.engine.step.prefill import Prefill
from weft.engine.step.reading import PromptPart, parts_together
from weft.engine.step.step import Guides, Plan, Processors


class StepTap(Protocol):
    """Sees what iterations compute, as it is launched."""

    def begin(self) -> None:
        """A step launches."""

    def read(self, parts: abc.Sequence[PromptPart], step: StepBuffers) -> None:
        """Parts of prompts were given to one forward; `step` has a row for each prompt that ends with it."""

    def decode(self, buffers: StepBuffers, rows: int) -> None:
        """An iteration was launched, whose first `rows` rows are of requests."""


class PromptReader:
    """Opens slots and reads prompts with `prefill`. `offers_of` gives the memory for what a search is offered,
    `drop_snapshots` takes what launches that failed left."""

    def __init__(
        self,
        prefill: Prefill,
        graphs: StepGraphs,
        attachments: Attachments,
        offers_of: Callable[[Sequence], OfferBuffers],
        drop_snapshots: Callable[[], None],
    ) -> None:
        self.opener = SlotOpener(prefill.runtime, prefill.grammar, prefill.parts, graphs.forget)
        self._prefill, self._graphs, self._attachments = prefill, graphs, attachments
        self._offers_of, self._drop_snapshots = offers_of, drop_snapshots
        self._rows: dict[Sequence, PromptRow] = {}
        self.tap: StepTap | None = None

    def release(self, sequence: Sequence) -> None:
        """The request gave its slots back."""
        self.opener.release(sequence)
        self._rows.pop(sequence, None)

    def open(self, batch: InFlightBatch, admitted: abc.Sequence[Sequence]) -> None:
        """Make slots the requests', on the device and for the grammar."""
        rows: dict[Sequence, PromptRow] = {}
        for sequence in admitted:
            try:
                rows[sequence] = self.opener.open(sequence)
            except Exception as error:
                batch.unopened.append((sequence, error))
        if not rows:
            return
        prefill = self._prefill
        try:
            open_rows(prefill.runtime, prefill.stream, prefill.grammar, prefill.parts, [*rows.values()])
        except Exception as error:
            batch.failures.append(([*rows], error))
        else:
            self._rows |= rows

    def read(self, batch: InFlightBatch, reading: abc.Sequence[tuple[Sequence, int]]) -> None:
        """Read so many more tokens of prompts; after a prompt's last one, its first token is sampled. Prompts are read
        together, but for those of which more is wanted than a token."""
        shares = {sequence: count for sequence, count in reading if sequence in self._rows}
        plain = {sequence: count for sequence, count in shares.items() if self._is_plain(sequence)}
        self._read_together(batch, plain)
        for sequence, count in shares.items():
            if sequence not in plain:
                if sequence.calls_host:
                    self._settle(batch)
                self._read_together(batch, {sequence: count})

    def _is_plain(self, sequence: Sequence) -> bool:
        return sequence.processor is None and sequence.search is None and not self._rows[sequence].context

    def _read_together(self, batch: InFlightBatch, shares: dict[Sequence, int]) -> None:
        """Read what is of one kind, in as many forwards as it takes."""
        of_row = {self._rows[sequence]: sequence for sequence in shares}
        ends = {row: row.position + shares[sequence] for row, sequence in of_row.items()}
        buffers = self._prefill.buffers
        counted = [(row, shares[sequence]) for row, sequence in of_row.items()]
        failed: set[PromptRow] = set()
        for together in parts_together(counted, buffers.num_tokens, buffers.num_rows):
            live = [part for part in together if part.row not in failed]
            if not live:
                continue
            try:
                self._read_parts({of_row[part.row]: part for part in live})
            except Exception as error:  # the host may have stumbled over what a part that failed left undone
                failed |= {part.row for part in live}
                batch.failures += [([of_row[p.row]], p.row.error or error) for p in live]
                continue
            for part in live:
                if part.stop == ends[part.row]:
                    self._note(batch, of_row[part.row], part)

    def _note(self, batch: InFlightBatch, sequence: Sequence, part: PromptPart) -> None:
        batch.read(sequence, part.row, part.ends)
        if part.ends:
            sequence.move(Stage.GENERATION)

    def _read_parts(self, together: dict[Sequence, PromptPart]) -> None:
        """Issue one forward, and what is to be kept of the tokens that are sampled after it."""
        ended = [sequence for sequence, part in together.items() if part.ends]
        guides = Guides.TARGET if any(sequence.is_guided for sequence in ended) else Guides.NONE
        for sequence in ended:
            guide = sequence.guide
            if guide is not None and guide.matcher is not None:
                self._attachments.change({sequence.slot: guide.matcher})
        step = self._prefill.read(
            [*together.values()],
            Plan(len(ended), 0, guides, Processors.of(sequence.processor for sequence in ended)),
            lambda: self._attachments.push([sequence.slot for sequence in ended]),
            self._host_work(together),
        )
        if self.tap is not None:
            self.tap.read([*together.values()], step)
        self._keep([(sequence, together[sequence].row) for sequence in ended], step)

    def _host_work(self, together: dict[Sequence, PromptPart]) -> HostWork | None:
        """What the host does to the logits of a prompt that is read alone."""
        if len(together) > 1:
            return None
        ((sequence, part),) = together.items()
        row = part.row
        copies = 1 if sequence.request.beam is None else sequence.request.beam.width_after(0)
        rows = HostRows(sequence, [sequence.output.token_ids], copies)
        return self._graphs.host_work([rows], lambda: row.error)

    def _keep(self, ended: list[tuple[Sequence, PromptRow]], step: StepBuffers) -> None:
        parts = self._prefill.parts
        launch = partial(self._prefill.stream.launch, guarded, [row for _, row in ended])
        if any(sequence.request.sampling.logprobs is not None for sequence, _ in ended):
            most = max(sequence.request.sampling.top_k for sequence, _ in ended)
            launch(note_logprobs, parts, step, most)
        for sequence, _ in ended:
            if sequence.search is not None:
                launch(note_offers, parts.state, step, self._offers_of(sequence))

    def _settle(self, batch: InFlightBatch) -> None:
        """Wait for what is launched: the host is about to wait for a prompt, and what failed before it would seem to
        be that prompt's fault."""
        try:
            self._prefill.stream.synchronize()
            self._prefill.runtime.check()
        except Exception as error:
            batch.failures.append((batch.sequences, error))
            self._drop_snapshots()

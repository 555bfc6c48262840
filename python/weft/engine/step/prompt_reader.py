"""The runner's part for prompts: slots become requests', and parts of prompts are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from weft.engine.device.log_probs import note_logprobs
from weft.engine.device.offers import OfferBuffers, note_offers
from weft.engine.device.state import StepBuffers
from weft.engine.processors.host import HostRows, HostWork
from weft.engine.scheduling.running import Running
from weft.engine.sequence import Stage
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

    def read(self, parts: Sequence[PromptPart], step: StepBuffers) -> None:
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
        offers_of: Callable[[Running], OfferBuffers],
        drop_snapshots: Callable[[], None],
    ) -> None:
        self.opener = SlotOpener(prefill.runtime, prefill.lane, prefill.parts, graphs.forget)
        self._prefill, self._graphs, self._attachments = prefill, graphs, attachments
        self._offers_of, self._drop_snapshots = offers_of, drop_snapshots
        self._rows: dict[Running, PromptRow] = {}
        self.tap: StepTap | None = None

    def release(self, running: Running) -> None:
        """The request gave its slots back."""
        self.opener.release(running)
        self._rows.pop(running, None)

    def open(self, batch: InFlightBatch, admitted: Sequence[Running]) -> None:
        """Make slots the requests', on the device and for the grammar."""
        rows: dict[Running, PromptRow] = {}
        for running in admitted:
            try:
                rows[running] = self.opener.open(running)
            except Exception as error:
                batch.unopened.append((running.request, error))
        if not rows:
            return
        prefill = self._prefill
        try:
            open_rows(prefill.runtime, prefill.stream, prefill.lane, prefill.parts, [*rows.values()])
        except Exception as error:
            batch.failures.append(([running.request for running in rows], error))
        else:
            self._rows |= rows

    def read(self, batch: InFlightBatch, reading: Sequence[tuple[Running, int]]) -> None:
        """Read so many more tokens of prompts; after a prompt's last one, its first token is sampled. Prompts are read
        together, but for those of which more is wanted than a token."""
        shares = {running: count for running, count in reading if running in self._rows}
        plain = {running: count for running, count in shares.items() if self._is_plain(running)}
        self._read_together(batch, plain)
        for running, count in shares.items():
            if running not in plain:
                if running.calls_host:
                    self._settle(batch)
                self._read_together(batch, {running: count})

    def _is_plain(self, running: Running) -> bool:
        return (
            running.request.processor is None and running.search is None and not self._rows[running].context
        )

    def _read_together(self, batch: InFlightBatch, shares: dict[Running, int]) -> None:
        """Read what is of one kind, in as many forwards as it takes."""
        of_row = {self._rows[running]: running for running in shares}
        ends = {row: row.position + shares[running] for row, running in of_row.items()}
        buffers = self._prefill.buffers
        counted = [(row, shares[running]) for row, running in of_row.items()]
        failed: set[PromptRow] = set()
        for together in parts_together(counted, buffers.num_tokens, buffers.num_rows):
            live = [part for part in together if part.row not in failed]
            if not live:
                continue
            try:
                self._read_parts({of_row[part.row]: part for part in live})
            except Exception as error:  # the host may have stumbled over what a part that failed left undone
                failed |= {part.row for part in live}
                batch.failures += [([of_row[p.row].request], p.row.error or error) for p in live]
                continue
            for part in live:
                if part.stop == ends[part.row]:
                    self._note(batch, of_row[part.row], part)

    def _note(self, batch: InFlightBatch, running: Running, part: PromptPart) -> None:
        batch.read(running, part.row, part.ends)
        if part.ends:
            running.request.move(Stage.GENERATION)

    def _read_parts(self, together: dict[Running, PromptPart]) -> None:
        """Issue one forward, and what is to be kept of the tokens that are sampled after it."""
        ended = [running for running, part in together.items() if part.ends]
        guides = Guides.TARGET if any(running.is_guided for running in ended) else Guides.NONE
        for running in ended:
            guide = running.request.guide
            if guide is not None and guide.matcher is not None:
                self._attachments.change({running.slot: guide.matcher})
        step = self._prefill.read(
            [*together.values()],
            Plan(len(ended), 0, guides, Processors.of(running.request.processor for running in ended)),
            lambda: self._attachments.push([running.slot for running in ended]),
            self._host_work(together),
        )
        if self.tap is not None:
            self.tap.read([*together.values()], step)
        self._keep([(running, together[running].row) for running in ended], step)

    def _host_work(self, together: dict[Running, PromptPart]) -> HostWork | None:
        """What the host does to the logits of a prompt that is read alone."""
        if len(together) > 1:
            return None
        ((running, part),) = together.items()
        row, request = part.row, running.request
        copies = 1 if request.beam is None else request.beam.width_after(0)
        rows = HostRows(request, [request.output.token_ids], copies)
        return self._graphs.host_work([rows], lambda: row.error)

    def _keep(self, ended: list[tuple[Running, PromptRow]], step: StepBuffers) -> None:
        parts = self._prefill.parts
        launch = partial(self._prefill.stream.launch, guarded, [row for _, row in ended])
        if any(running.request.sampling.logprobs is not None for running, _ in ended):
            most = max(running.request.sampling.top_k for running, _ in ended)
            launch(note_logprobs, parts, step, most)
        for running, _ in ended:
            if running.search is not None:
                launch(note_offers, parts.state, step, self._offers_of(running))

    def _settle(self, batch: InFlightBatch) -> None:
        """Wait for what is launched: the host is about to wait for a prompt, and what failed before it would seem to
        be that prompt's fault."""
        try:
            self._prefill.stream.synchronize()
            self._prefill.runtime.check()
        except Exception as error:
            batch.failures.append((batch.requests, error))
            self._drop_snapshots()

"""Draws thousands of samples with the engine's own iteration: all slots hold the same prompt, each with its own
seed.

The prompt is read once, and its pages are copied to every slot. Then `decode_step` runs, captured or eager, as
in the engine. A slot whose output is complete starts the next one at once, so slots have different lengths. Each
case has a group of slots, so a batch mixes all cases.

S slots, K drafts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from support.statistics.exact_outputs import NUM_OUTPUTS, SHAPE, codes
from support.statistics.small_world import END, MAX_TOKENS, PAGE_SIZE, PROMPT, VOCAB, Case, compiled, target
from weft.config import Graphs
from weft.core.request import TokenRules
from weft.engine.device.sampling import SlotSampling, write_tables
from weft.engine.device.state import DecodeParts, SlotState, Verify, verify_coupled
from weft.engine.runner.graphs import StepGraphs
from weft.engine.runner.in_flight import PromptInputs
from weft.engine.runner.prompts import PromptPart
from weft.engine.runner.step import GuidedLogits, Plan
from weft.grammar.base import Matcher
from weft.guided.grammar_stream import GrammarStream
from weft.guided.proposals import Proposals, Sources
from weft.guided.state import GuidedShape, GuidedState
from weft.models.base import PagedKV
from weft.runtime import get as get_runtime
from weft.spec.base import Drafter

MakeDrafter = Callable[[int], Drafter]
"""Makes a drafter with this number of pages."""


@dataclass(frozen=True)
class Samples:
    """`outputs` [cases, n, MAX_TOKENS], padded with END, in the order of their seeds, and the share of verified
    drafts that were accepted."""

    outputs: Tensor
    accepted: float

    def counts(self, case: int) -> Tensor:
        """The number of occurrences of each output, in the shape of `distribution`."""
        return codes(self.outputs[case]).bincount(minlength=NUM_OUTPUTS).view(SHAPE)


def seeds_of(cases: int, count: int, first_seed: int) -> Tensor:
    """Return the seeds of the outputs, [cases, count]. They are consecutive, and each case has another high word."""
    return first_seed + (torch.arange(cases) << 32)[:, None] + torch.arange(count)


class ManyRequests:
    """Slots for `per_case` concurrent requests of each case. `sources` draft on the host. `verify` is the
    verification of the iterations."""

    def __init__(
        self,
        cases: Sequence[Case],
        per_case: int,
        make_drafter: MakeDrafter | None = None,
        num_drafts: int = 0,
        *,
        guided_drafts: bool = True,
        graphs: Graphs = "one",
        sources: Sources | None = None,
        verify: Verify = verify_coupled,
    ) -> None:
        self.cases, self.per_case, self.num_slots = cases, per_case, per_case * len(cases)
        self.runtime = get_runtime("cpu")
        self.stream = self.runtime.stream()
        most = len(PROMPT) + MAX_TOKENS + 2 * num_drafts
        pages_per_slot = -(-most // PAGE_SIZE)
        num_pages = 1 + self.num_slots * pages_per_slot
        drafter = make_drafter(num_pages) if make_drafter is not None else None
        kv = PagedKV.for_model(target(), num_pages, PAGE_SIZE)
        self.grammar = self._make_grammar(max(num_drafts, 1), sources)
        state = SlotState(self.grammar, pages_per_slot, most)
        self.parts = DecodeParts(
            target(), kv, drafter, state, has_proposals=sources is not None, max_drafts=num_drafts
        )
        self.parts.verify = verify
        with torch.inference_mode():
            pages = torch.arange(1, num_pages, dtype=torch.int32)
            state.page_table[:-1].copy_(pages.view(self.num_slots, pages_per_slot))
            self._write_parameters()
        guided = any(case.guided for case in cases)
        masks_drafts = guided_drafts and num_drafts > 0
        guides = (
            (GuidedLogits.DRAFTS if masks_drafts else GuidedLogits.TARGET) if guided else GuidedLogits.NONE
        )
        self.plan = Plan(self.num_slots, num_drafts, guides)
        self.graphs = StepGraphs(self.runtime, self.stream, self.grammar, self.parts, graphs, max_parts=1)
        self._read_prompt()
        self.graphs.prepare(self.plan)
        self.buffers = self.graphs.buffers(self.plan)
        self._order = torch.randperm(self.num_slots, generator=torch.Generator().manual_seed(0)).tolist()
        # Two matchers for each guided slot: one follows its output, and the previous output may still use the other.
        self._matchers = {
            slot: [compiled().matcher() for _ in range(2)]
            for slot in range(self.num_slots)
            if cases[slot // per_case].guided
        }
        self._attach: dict[int, Matcher] = {}  # sent with the next iteration

    def sample(self, count: int, first_seed: int = 0) -> Samples:
        """Sample at least `count` outputs of each case, with the seeds of `seeds_of`."""
        slots, turns, width = self.num_slots, -(-count // self.per_case), self.plan.num_drafts + 1
        seeds = seeds_of(len(self.cases), self.per_case * turns, first_seed).view(slots, turns)
        seeds = torch.cat((seeds, seeds[:, -1:]), 1)  # outputs of a slot after its last turn do not count
        outputs = torch.full((slots, turns + 1, MAX_TOKENS), END)
        turn, length = torch.zeros(slots, dtype=torch.int64), torch.zeros(slots, dtype=torch.int64)
        text = torch.full((slots, MAX_TOKENS + width), END)
        every_end = self._every_end()
        drafted = accepted = 0
        self._begin(torch.arange(slots), seeds[:, 0])
        while int(turn.min()) < turns:
            verified = self._iterate()
            has_drafts = length > 0
            drafted += int(has_drafts.sum()) * (width - 1)
            accepted += int(verified[has_drafts, 0].sum())
            text.scatter_(1, length[:, None] + torch.arange(width), verified[:, 1:])
            length += verified[:, 0] + 1
            output = text[:, :MAX_TOKENS]
            ended = every_end.gather(1, output) & (torch.arange(MAX_TOKENS) < length[:, None])
            whole = (ended.any(1) | (length >= MAX_TOKENS)).nonzero().view(-1)
            behind_end = ended.cumsum(1) - ended.long() > 0
            outputs[whole, turn[whole]] = output.masked_fill(behind_end, END)[whole]
            turn[whole] = (turn[whole] + 1).clamp(max=turns)
            length[whole] = 0
            self._begin(whole, seeds[whole, turn[whole]])
        assert self.grammar.state.num_failed == 0
        found = outputs[:, :turns].reshape(len(self.cases), -1, MAX_TOKENS)
        return Samples(found, accepted / max(drafted, 1))

    def close(self) -> None:
        """Release the graphs."""
        self.stream.synchronize()
        self.graphs.close()
        self.grammar.close()

    def _make_grammar(self, max_drafts: int, sources: Sources | None) -> GrammarStream:
        def propose(state: GuidedState) -> Proposals:
            assert sources is not None
            return Proposals(state, self.runtime.pinned, sources)

        make_proposals = propose if sources is not None else None
        shape = GuidedShape(self.num_slots, max_drafts, VOCAB, [END])
        return GrammarStream(self.runtime, shape, make_proposals=make_proposals)

    def _read_prompt(self) -> None:
        """Write the prompt without its last token to every slot's KV cache, and to the drafter's."""
        parts, length = self.parts, len(PROMPT) - 1
        sampling = SlotSampling(self.runtime, self.cases[0].sampling, PROMPT, VOCAB)
        prompt = PromptInputs((0,), np.array(PROMPT), (), sampling)
        plan = Plan(self.num_slots, 0, num_context=length)
        self.graphs.prepare(plan)
        self.graphs.send(plan, [], [PromptPart(prompt, 0, length)])
        self.graphs.run(plan)
        self.stream.synchronize()
        self.runtime.check()
        table = parts.state.page_table[: self.num_slots].long()
        with torch.inference_mode():
            for cache in parts.caches:
                for group in cache.groups:
                    group[:, table] = group[:, table[0]][:, None]

    def _write_parameters(self) -> None:
        """Write each case's sampling parameters to its slots, as the engine does."""
        params = self.parts.state.params
        for number, case in enumerate(self.cases):
            rules = TokenRules(case.bad_words, case.ends if case.sampling.min_tokens else ())
            sampling = SlotSampling(self.runtime, case.sampling, PROMPT, VOCAB, rules=rules)
            first, stop = number * self.per_case, (number + 1) * self.per_case
            params.records[first] = torch.from_numpy(sampling.record)
            write_tables(params, sampling, first)
            for table in (
                params.records,
                params.ends,
                params.prompt,
                params.bias,
                params.bad_words,
                params.history,
            ):
                table[first:stop] = table[first].clone()

    def _every_end(self) -> Tensor:
        """The tokens that end each slot's output, bool [S, V]."""
        ends = torch.zeros(len(self.cases), VOCAB, dtype=torch.bool)
        for number, case in enumerate(self.cases):
            ends[number, list(case.ends)] = True
        return ends.repeat_interleave(self.per_case, 0)

    def _begin(self, slots: Tensor, seeds: Tensor) -> None:
        """Reset `slots` to the end of the prompt, with new matchers."""
        self.stream.launch(self._reset, slots, seeds)
        for slot in slots.tolist():
            if slot in self._matchers:
                self._matchers[slot].reverse()
                self._attach[slot] = self._matchers[slot][0]
                self._attach[slot].reset()
            if self.grammar.proposals is not None:
                self.grammar.proposals.open(slot, PROMPT, self.parts.state.verified.shape[1] + MAX_TOKENS)

    def _reset(self, slots: Tensor, seeds: Tensor) -> None:
        state = self.parts.state
        state.params.seed.index_copy_(0, slots, seeds)
        state.params.counts.index_fill_(0, slots, 0)
        state.length.index_fill_(0, slots, len(PROMPT) - 1)
        state.last_token.index_fill_(0, slots, PROMPT[-1])
        state.drafts.index_fill_(1, slots, -1)

    def _iterate(self) -> Tensor:
        """One iteration of every slot: [S, K + 2], the drafts accepted and the target's tokens."""
        if self.plan.guided_logits or self.parts.has_proposals:
            attach, self._attach = self._attach, {}
            self.grammar.push(self._order, attach)
        self.graphs.send(self.plan, self._order)
        self.graphs.run(self.plan)
        self.stream.synchronize()
        self.runtime.check()
        return self.parts.state.verified[: self.num_slots, : self.plan.num_drafts + 2].clone()

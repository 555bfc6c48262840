"""Wiring an engine's parts. The one place that knows them all; features that not every request needs come in here."""

from __future__ import annotations

from dataclasses import replace

from weft.config import ResolvedConfig, SchedulerConfig, Speculation
from weft.engine.admission import Admission
from weft.engine.device.state import DecodeParts, HostPages, SlotState
from weft.engine.device.tensors import OutputBuffers
from weft.engine.engine import Engine
from weft.engine.features.beam.run import BeamRun, commit_search
from weft.engine.kv.cache import Keeping
from weft.engine.kv.events import KvEventLog
from weft.engine.kv.sight import Sight
from weft.engine.kv.size import host_pages
from weft.engine.output.commit import DraftedBy
from weft.engine.output.finish import Finisher
from weft.engine.output.processor import OutputProcessor
from weft.engine.runner.graphs import StepGraphs
from weft.engine.runner.runner import Decoder, DraftGuidance, ModelRunner
from weft.engine.scheduling.capacity import Capacity, DrafterNeeds
from weft.engine.scheduling.policy import FairTurns
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.scheduling.starts import MatcherStarts, StartThreads
from weft.engine.scheduling.waiting import Waiting
from weft.engine.sequence import Sequence
from weft.errors import InputError
from weft.guided.grammar_stream import GrammarStream
from weft.guided.state import GuidedShape
from weft.models.base import Model, PagedKV
from weft.runtime.interface import Runtime
from weft.spec.load import Drafting


def build_engine(
    runtime: Runtime,
    model: Model,
    kv: PagedKV,
    drafting: Drafting,
    end_token_ids: list[int],
    config: ResolvedConfig,
) -> Engine:
    """An engine that decodes with `model`."""
    check_beam_width(config.max_beam_width, drafting.speculation, config)
    if drafting.speculation.sizes_ahead is not None and config.additional_outputs:
        raise InputError(
            "additional_outputs does not go with Speculation.lookahead(), whose forward reads more than the text; "
            "leave one of the two out"
        )
    decoder = build_decoder(runtime, model, kv, drafting, end_token_ids, config)
    parts, grammar, speculation = decoder.parts, decoder.grammar, drafting.speculation
    ends = frozenset(end_token_ids)
    drafter = parts.drafter
    needs = DrafterNeeds(parts.max_drafts)
    if drafter is not None:
        needs = DrafterNeeds(parts.max_drafts, drafter.reuse_margin, drafter.kv is not None)
    capacity = Capacity(config, needs, keeping(config, parts), Sight.of(kv.windows))

    def begin_search(sequence: Sequence) -> BeamRun:
        return BeamRun(sequence, grammar.state, config.page_size, ends, config.mask_time_limit_s)

    turns = FairTurns()
    starts = MatcherStarts(
        StartThreads(), config.programs_ahead, config.max_program_bytes, turns, config.shares_slots
    )
    waiting = Waiting(config.max_idle_s, turns, starts)
    scheduler = Scheduler(config, speculation, waiting, capacity, begin_search)
    runner = ModelRunner(decoder, DraftGuidance(speculation.guide_drafts))
    finisher = Finisher(scheduler, grammar.state)
    output = OutputProcessor(runtime, scheduler, finisher, runner, grammar.state, ends)
    output.commit_search = commit_search
    output.drafted_by = drafted_by(speculation, grammar)

    admission = Admission(config, speculation, parts, capacity)
    runtime.publish()  # weights, keys and values, states and buffers
    return Engine(decoder, speculation, scheduler, runner, output, admission)


def check_beam_width(max_beam_width: int, speculation: Speculation, config: SchedulerConfig) -> None:
    """Raise `InputError` unless an engine can be made for beam searches as wide as `max_beam_width`."""
    if max_beam_width < 1:
        raise InputError(f"the beam width is {max_beam_width}; it must be 1 (no beams) or more")
    if max_beam_width > config.max_batch:
        raise InputError(
            f"max_beam_width is {max_beam_width}, but {config.max_batch} sequences are decoded at once; raise "
            "max_batch (of an executor: max_batch_size), or lower the width"
        )
    if max_beam_width > 1 and speculation.drafters:
        raise InputError(
            f"beam search does not work with speculation ({speculation.name}): use Speculation.none(), or a "
            "max_beam_width of 1"
        )


def keeping(config: ResolvedConfig, parts: DecodeParts) -> Keeping:
    """How the config has cached pages kept, of which some may go to the host's memory that the parts have."""
    events = config.kv_event_buffer
    log = KvEventLog(events, config.max_seq_len) if events else None
    num_pages = parts.host.num_pages if parts.host is not None else 0
    return Keeping(num_pages, config.secondary_offload_min_priority, log)


def drafted_by(speculation: Speculation, grammar: GrammarStream) -> DraftedBy:
    """Names who drafted: the one drafter there is; or, of several, what the host proposed by whom it says, and the rest
    by the one that drafts on the device."""
    last = speculation.drafters[-1] if speculation.drafters else ""
    proposals = grammar.proposals
    if len(speculation.drafters) < 2 or proposals is None:
        return lambda sequence, count: [last] * count

    def named(sequence: Sequence, count: int) -> list[str]:
        first = len(sequence.output.token_ids) - sequence.resumed_at
        return [name or last for name in proposals.origins(sequence.slot, first, count)]

    return named


def build_decoder(
    runtime: Runtime,
    model: Model,
    kv: PagedKV,
    drafting: Drafting,
    end_token_ids: list[int],
    config: ResolvedConfig,
) -> Decoder:
    """The device's side of an engine."""
    stream, max_drafts = runtime.stream(), drafting.speculation.max_draft_tokens
    make_proposals = drafting.proposals_maker(runtime)
    shape = GuidedShape(config.max_batch, max(max_drafts, 1), model.config.vocab_size, end_token_ids)
    grammar = GrammarStream(
        runtime,
        shape,
        make_proposals=make_proposals,
        mask_time_limit_s=config.mask_time_limit_s,
        polls=config.host_tasks == "polling",
    )
    outputs = OutputBuffers.allocate(
        runtime,
        stream,
        model,
        config.max_batch + 1,
        max(max_drafts, 1) + 1,
        generation_logits=config.gather_generation_logits,
        additional=config.additional_outputs,
    )
    pages_per_slot = config.pages_for(config.max_seq_len, max_drafts)
    parts = DecodeParts(
        model,
        kv,
        drafting.drafter,
        SlotState(grammar, pages_per_slot, config.max_seq_len),
        has_proposals=make_proposals is not None,
        max_drafts=max_drafts,
        outputs=outputs,
        logprobs=config.logprobs,
    )
    num_host_pages = host_pages(config, sum(cache.page_bytes for cache in parts.caches))
    if num_host_pages:
        parts.host = HostPages.allocate(runtime, parts.caches, num_host_pages)
    graphs = StepGraphs(runtime, stream, grammar, parts, config.graphs)
    config = replace(config, host_tasks="polling" if grammar.polls else "callback")
    return Decoder(runtime, stream, grammar, parts, graphs, config)

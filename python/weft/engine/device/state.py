"""Device state: per request slot, and the fixed buffers of graphs of one batch size.

There are S request slots and one more, the last, for rows that only pad a batch. Every tensor here is allocated once:
graphs hold its address.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from weft.core import MAX_LOGPROBS
from weft.engine.device.sampling import SamplingState
from weft.engine.device.tensors import OutputBuffers
from weft.guided.protocol import Lane
from weft.models.base import Model, PagedKV
from weft.spec.base import DraftBuffers, Drafter, Verified


class SlotState:
    """What the device knows of each slot; `length` is the number of tokens in the KV, the position of `last_token`.

    `drafts` [K, S+1] and `verified` [S+1, K+2] are the grammar lane's (`guided/lane.py`): draft j of a slot is
    `drafts[j-1, slot]`, -1 for none; a row of `verified` is the count of accepted drafts, then the target's tokens.
    `proposed` is how many drafts there were in the last iteration that verified some, those of -1 left out.
    `request_ids` are the requests' own, and `processors` the numbers of their captured processors, 0 for none.
    `logprobs` and `logprob_ids` [S+1, K+1, 1+N] belong to those tokens: the token's own, then the N likeliest.
    """

    def __init__(self, lane: Lane, pages_per_slot: int, max_seq_len: int) -> None:
        self.drafts, self.verified, device = lane.drafts, lane.verified, lane.drafts.device
        rows = self.verified.shape[0]
        self.dummy = rows - 1
        self.last_token = torch.zeros(rows, dtype=torch.int64, device=device)
        self.length = torch.zeros(rows, dtype=torch.int64, device=device)
        self.proposed = torch.zeros(rows, dtype=torch.int64, device=device)
        self.request_ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self.processors = torch.zeros(rows, dtype=torch.int64, device=device)
        self.page_table = torch.zeros(rows, pages_per_slot, dtype=torch.int32, device=device)
        written = max_seq_len + 2 * self.verified.shape[1]  # an iteration may go beyond the end
        self.sampling = SamplingState(rows, lane.state.vocab_size, written, device)
        likeliest = min(MAX_LOGPROBS, lane.state.vocab_size)
        logprobs = (rows, self.verified.shape[1] - 1, 1 + likeliest)
        self.logprobs = torch.zeros(logprobs, dtype=torch.float32, device=device)
        self.logprob_ids = torch.zeros(logprobs, dtype=torch.int64, device=device)


@dataclass(frozen=True)
class StepBuffers:
    """What crosses the nodes of one iteration over B rows that verifies T - 1 drafts. `raw_logits_BTV` are the target's
    before anything acted on them, kept in iterations that give log-probabilities."""

    slots_B: Tensor
    temperature_BT: Tensor
    seed_B: Tensor
    tokens_BT: Tensor
    logits_BTV: Tensor
    raw_logits_BTV: Tensor
    verified: Verified
    draft: DraftBuffers | None

    @classmethod
    def allocate(
        cls,
        slots_B: Tensor,
        width: int,
        model: Model,
        state: SlotState,
        drafter: Drafter | None,
        *,
        keeps_raw_logits: bool,
    ) -> StepBuffers:
        """Buffers of `width` positions around `slots_B`, which graphs of one batch size share."""
        config, device, batch = model.config, state.length.device, slots_B.shape[0]
        aux = len(drafter.aux_layers) if drafter is not None else 0
        logits = (batch, width, config.vocab_size)
        raw_logits = logits if keeps_raw_logits else (0, width, config.vocab_size)

        def integers(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=device)

        return cls(
            slots_B=slots_B,
            temperature_BT=torch.zeros(batch, width, dtype=torch.float32, device=device),
            seed_B=integers(batch),
            tokens_BT=integers(batch, width),
            logits_BTV=torch.zeros(logits, dtype=config.dtype, device=device),
            raw_logits_BTV=torch.zeros(raw_logits, dtype=config.dtype, device=device),
            verified=Verified(
                slots_B=slots_B,
                tokens_BT=integers(batch, width),
                count_B=integers(batch),
                base_B=integers(batch),
                aux_BTF=torch.zeros(
                    batch, width, aux * config.hidden_size, dtype=config.dtype, device=device
                ),
                page_table_BP=torch.zeros(batch, state.page_table.shape[1], dtype=torch.int32, device=device),
            ),
            draft=drafter.draft_buffers(batch) if drafter is not None else None,
        )


@dataclass(frozen=True)
class DecodeParts:
    """What an engine decodes with. `drafter` drafts on the device, `has_proposals` says that the host does, too; of
    either at most `max_drafts`. `outputs` is what can be gathered besides tokens. `simulated` tokens per iteration are
    accepted whatever they are, if it is set."""

    model: Model
    kv: PagedKV
    drafter: Drafter | None
    state: SlotState
    has_proposals: bool
    max_drafts: int
    simulated: float | None = None
    outputs: OutputBuffers = field(default_factory=OutputBuffers)

    @property
    def aux_layers(self) -> tuple[int, ...]:
        return self.drafter.aux_layers if self.drafter is not None else ()

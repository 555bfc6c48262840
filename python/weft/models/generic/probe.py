"""Compares a network's forwards over weft's memory with transformers' own forward, when a model is loaded.

Two texts are read in parts, in batches of different cuts, with wrong drafts between them. If a layer kept something
that weft does not know of, or read it otherwise, the logits would differ from those of the whole texts.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from weft.errors import ModelError
from weft.models.base import Model, PagedKV
from weft.models.generic.calls import NAME, Calls
from weft.models.generic.modules import PackedWeight
from weft.models.generic.network import quiet
from weft.models.states import States
from weft.ops.attention import Rows

LENGTH = 21
"""The number of tokens of a text."""

PAGE_SIZE = 4
TOLERANCES = {torch.float32: 0.01, torch.float16: 0.05, torch.bfloat16: 0.2}
"""The largest difference of logits, relative to the largest logit, by the dtype of activations. Wrong memory gives
differences near 1. With bfloat16, mixtures choose other experts for a few tokens."""

_READERS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "bincount")
"""Operations whose results the host must read, so that a captured forward can't have them."""


class _NoReads(TorchDispatchMode):
    """Refuses operations that read values on the host."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in func.__name__ for name in _READERS):
            raise ModelError(f"its code reads values of tensors ({func}), which a captured forward can't")
        return func(*args, **(kwargs or {}))


def check_logits(model: Model, network: Any, where: str) -> None:
    """Raise `ModelError` unless the model gives the logits of transformers' own forward."""
    vocab_size, device = model.config.vocab_size, model.device
    # Texts without structure, the same on each machine.
    tokens = (torch.arange(2 * LENGTH, device=device).view(2, LENGTH) * 7919 + 12345) % (vocab_size - 3) + 3
    try:
        with quiet():  # transformers would warn of its slow recurrences, which weft does not use
            expected = _plain_logits(network, tokens).float()
        with _NoReads():  # type: ignore[no-untyped-call]
            actual = _logits_in_parts(model, tokens).float()
    except Exception as error:  # transformers' code raises many types
        problem = f"its code failed: {type(error).__name__}: {error}"
        if isinstance(error, ModelError):
            problem = str(error)
        elif PackedWeight.__name__ in str(error):
            problem = "its code reads weights that weft keeps in another form"
        raise ModelError(f"{where}: weft can't run {model.config.architecture}: {problem}") from error
    difference = ((actual - expected).abs().max() / expected.abs().max()).item()
    if not difference < TOLERANCES[model.config.dtype]:
        raise ModelError(
            f"{where}: weft can't run {model.config.architecture}: read in parts, texts have other logits than read "
            f"whole (difference {difference:.1e} of the largest), so some layer keeps what weft does not know; of "
            f"{model.config.num_layers} layers, {len(model.config.memories)} use transformers' attention interface or "
            "recurrent functions"
        )


def _plain_logits(network: Any, tokens: Tensor) -> Tensor:
    """The logits of whole texts [B, T] by transformers' attention and recurrences."""
    network.set_attn_implementation("eager")
    try:
        with Calls(is_plain=True):
            logits: Tensor = network(input_ids=tokens, use_cache=False).logits
    finally:
        network.set_attn_implementation(NAME)
    return logits


def _logits_in_parts(model: Model, tokens: Tensor) -> Tensor:
    """The logits of texts [2, T], read in parts."""
    batch, length = tokens.shape
    pages = -(-(length + PAGE_SIZE) // PAGE_SIZE)
    memories, device = model.config.layer_memories, model.device
    kv = PagedKV(memories, 1 + batch * pages, PAGE_SIZE, model.config.dtype, device)
    for group in kv.groups:
        group.fill_(torch.nan)
    if model.config.has_states:
        kv.states = states = States(memories, batch, 0, 3, False, device)
        states.storage.fill_(torch.nan)
        states.drafts.fill_(torch.nan)
    # A page table without order, as in an engine.
    table = (torch.arange(batch * pages, device=device) * 5 % (batch * pages) + 1).view(batch, pages).int()
    slots = torch.arange(batch, device=device)
    out = torch.full((batch, length, model.config.vocab_size), torch.nan, device=device)

    def read(base: list[int], ids: Tensor, starts: list[int] | None = None, is_draft: bool = False) -> Tensor:
        width = ids.shape[-1] if starts is None else max(b - a for a, b in pairwise(starts))
        of_states = kv.states.rows(slots, batch if is_draft else 0) if kv.states is not None else None
        rows = Rows(
            table,
            torch.tensor(base, device=device),
            width,
            starts=None if starts is None else torch.tensor(starts, device=device),
            live=None if starts is None else torch.tensor([starts[-1]], device=device),
            states=of_states,
        )
        return model.logits(model.forward(ids, kv, rows).last)

    # Parts of prompts: 9 and 6 tokens packed with padding, then 4 tokens of each.
    packed = torch.cat((tokens[0, :9], tokens[1, :6], tokens[0, :3]))
    logits = read([0, 0], packed, [0, 9, 15])
    out[0, :9], out[1, :6] = logits[:9], logits[9:15]
    logits = read([9, 6], torch.stack((tokens[0, 9:13], tokens[1, 6:10])))
    out[0, 9:13], out[1, 6:10] = logits
    # Drafts: of text 0 one of three is right, of text 1 all are.
    ids = torch.stack((tokens[0, 13:17], tokens[1, 10:14]))
    ids[0, 2:] = ids[0, 2:] % 5 + 3
    logits = read([13, 10], ids, is_draft=True)
    out[0, 13:15], out[1, 10:14] = logits[0, :2], logits[1]
    if kv.states is not None:
        kv.states.owed[:2] = torch.tensor([1, 3], device=device)
    logits = read([15, 14], torch.stack((tokens[0, 15:18], tokens[1, 14:17])), is_draft=True)
    out[0, 15:18], out[1, 14:17] = logits
    if kv.states is not None:
        kv.states.owed[:2] = torch.tensor([2, 2], device=device)
    logits = read([18, 17], torch.stack((tokens[0, 18:21], tokens[1, 17:20])))
    out[0, 18:21], out[1, 17:20] = logits
    if kv.states is not None:
        kv.states.owed.zero_()
    logits = read([20, 20], tokens[:, 20:21])
    out[1, 20] = logits[1, 0]
    return out

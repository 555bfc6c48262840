"""The exact distribution over whole outputs, computed from the model's logits by enumerating every output.

The logits are those of `Model.forward` over each text from its start. The sampling is that of the end-to-end tests'
reference, which uses no kernels. The grammar is Python's `re`.
"""

from __future__ import annotations

import functools
import itertools
import math

import torch
from torch import Tensor

from support.engine.sampling_oracle import Words, forbid, penalise, truncate
from support.statistics.small_world import (
    CONFIG,
    END,
    MAX_TOKENS,
    PROMPT,
    TOKENS,
    VOCAB,
    Case,
    allowed,
    target,
)
from weft.models.base import PagedKV
from weft.ops.attention import Rows

NUM_OUTPUTS = VOCAB**MAX_TOKENS
SHAPE = (VOCAB,) * MAX_TOKENS

BOUNDARY = 1e-5
"""If a probability is this close to a truncation limit, the token may be kept or cut. Cases must avoid this."""

Output = tuple[int, ...]


def codes(outputs: Tensor) -> Tensor:
    """Map outputs [n, MAX_TOKENS] int64, padded with END, to their numbers [n], which are below NUM_OUTPUTS."""
    weights = VOCAB ** torch.arange(MAX_TOKENS - 1, -1, -1)
    return (outputs * weights).sum(1)


def distribution(case: Case) -> Tensor:
    """Return the probability of each output, float64 with MAX_TOKENS dimensions of size VOCAB. Outputs are padded
    with END."""
    found = torch.zeros(NUM_OUTPUTS, dtype=torch.float64)
    open_outputs: dict[Output, float] = {(): 1.0}
    for length in range(1, MAX_TOKENS + 1):
        longer: dict[Output, float] = {}
        for output, probability in open_outputs.items():
            shares = next_token(case, output)
            for token in shares.nonzero().view(-1).tolist():
                whole = (*output, token)
                share = probability * float(shares[token])
                if token in case.ends or length == MAX_TOKENS:
                    padded = torch.tensor(whole + (END,) * (MAX_TOKENS - length))
                    found[codes(padded[None])] += share
                else:
                    longer[whole] = share
        open_outputs = longer
    return found.view(SHAPE)


def next_token(case: Case, output: Output) -> Tensor:
    """Return the probability of each token after an output, float64 [VOCAB]."""
    sampling = case.sampling
    logits = penalise(model_logits()[output].float(), sampling, PROMPT, output)
    logits = forbid(logits, Words(case.bad_words), [*PROMPT, *output])
    if case.guided:
        legal = allowed(b"".join(TOKENS[token] for token in output))
        logits[[token for token in range(VOCAB) if token not in legal]] = -math.inf
    if len(output) < sampling.min_tokens:
        without = logits.clone()
        without[list(case.ends)] = -math.inf
        logits = without if bool(without.isfinite().any()) else logits
    logits, margin = truncate(logits, sampling)
    assert margin > BOUNDARY, f"{case}: a limit of truncation is too near to tell behind {output}"
    return (logits.double() / sampling.temperature).softmax(0)


@functools.cache
@torch.inference_mode()
def model_logits() -> dict[Output, Tensor]:
    """The model's logits after every output that has not ended."""
    model, found = target(), {}
    for length in range(MAX_TOKENS):
        outputs = list(itertools.product([t for t in range(VOCAB) if t != END], repeat=length))
        tokens = torch.tensor([[*PROMPT, *output] for output in outputs])
        rows, width = tokens.shape
        kv = PagedKV.for_model(model, rows + 1, width)
        pages = torch.arange(1, rows + 1, dtype=torch.int32)[:, None]
        index = Rows(pages, torch.zeros(rows, dtype=torch.int64), width)
        logits = model.logits(model.forward(tokens, kv, index).last[:, -1])
        found.update(zip(outputs, logits, strict=True))
    assert logits.shape[1] == CONFIG.vocab_size
    return found

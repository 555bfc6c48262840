"""Triton kernels of layers that keep a state by slot: short convolutions and linear recurrences.

Rows of a call that have the same slot form a chain. The program of a chain's first row walks along the chain: parts of
a prompt in order, then the speculative row. So it reads a state once and writes it once, and no program waits for
another.

The state after a token must have the same bits wherever it is computed. So products and sums are fused only where the
code says so (`enable_fp_fusion`).
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from weft.ops.recurrence import ELEMENT, HEAD, KEY, decay_kind
from weft.ops.triton_launch import begin, chain_options

BLOCK = 1024
CHANNELS = 128  # of a program
TOKENS = 16  # of a program that convolves the tokens of prompts
STATE_SIZE = 2048  # elements of a state in a warp's registers

_HEAD, _KEY, _ELEMENT = tl.constexpr(HEAD), tl.constexpr(KEY), tl.constexpr(ELEMENT)


@triton.jit
def first_and_count(Starts, b, num_rows, width):
    """The first tokens and the numbers of tokens of rows `b`, a number or a tile. Rows from `num_rows` on have none."""
    if Starts is None:
        first = b * width
        count = tl.where(b < num_rows, width, 0)
    else:
        first = tl.load(Starts + b, mask=b < num_rows, other=0)
        count = tl.load(Starts + b + 1, mask=b < num_rows, other=0) - first
    return first, count


@triton.jit
def chain_of(Starts, Slots, b, num_rows, width, speculative, num_slots, MOST_ROWS: tl.constexpr):
    """The chain of row `b`: its places by row [MOST_ROWS], its length, and the row's place. A place is -1 for rows of
    other chains. Its length is 0 unless row `b` is the first of a chain."""
    rows = tl.arange(0, MOST_ROWS)
    _, counts = first_and_count(Starts, rows, num_rows, width)
    slots = tl.load(Slots + rows, mask=rows < num_rows, other=-1)
    slot = tl.load(Slots + b)
    place = tl.where(b < speculative, b + num_rows, b)
    places = tl.where(rows < speculative, rows + num_rows, rows)
    is_padding = (slot < 0) | (slot >= num_slots - 1)
    places = tl.where((slots == slot) & (counts > 0) & (slots >= 0), places, -1)
    before = (places >= 0) & (places < place)
    _, count = first_and_count(Starts, b, num_rows, width)
    length = tl.sum((places >= 0).to(tl.int32), 0)
    is_first = (tl.sum(before.to(tl.int32), 0) == 0) & (count > 0) & (is_padding == 0)
    return places, tl.where(is_first, length, 0), place


@triton.jit
def next_place(places, place, num_rows):
    """The place in a chain after `place`, and the row there."""
    following = tl.min(tl.where(places > place, places, 2 * num_rows), 0)
    return following, tl.where(following >= num_rows, following - num_rows, following)


@triton.jit
def starts_text(Position, Count, b, offset):
    """Whether the first token of row `b` is the first of its text."""
    position = tl.load(Position + b) + offset
    if Count is not None:
        position += tl.load(Count + b)
    return position == 0


@triton.jit
def load_decay(
    Decay, Rates, head, i, c, key_size, value_size, KIND: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr
):
    """The decay [BK, BV] of a token. `Decay` is the address of the token's."""
    if KIND == _HEAD:
        decay = tl.load(Decay + head).to(tl.float32) + tl.zeros((BK, BV), tl.float32)
    elif KIND == _KEY:
        of_keys = tl.load(Decay + head * key_size + i, mask=i < key_size, other=0.0).to(tl.float32)
        decay = tl.broadcast_to(of_keys[:, None], (BK, BV))
    else:
        step = tl.load(Decay + head * value_size + c, mask=c < value_size, other=0.0).to(tl.float32)
        place = (head * key_size + i[:, None]) * value_size + c[None, :]
        is_inside = (i[:, None] < key_size) & (c[None, :] < value_size)
        decay = tl.exp(step[None, :] * tl.load(Rates + place, mask=is_inside, other=0.0))
    return decay


@triton.jit
def updated(state, k, u, BK: tl.constexpr, BV: tl.constexpr):
    """The decayed `state` + k u."""
    return tl.fma(tl.broadcast_to(k[:, None], (BK, BV)), tl.broadcast_to(u[None, :], (BK, BV)), state)


@triton.jit
def apply_drafts(
    state, count, CachedDecay, CachedKey, CachedValue, Rates, at, draft_row, head, key_head, i, c, key_size, value_size,
    KIND: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The state after the first `count` drafts, whose inputs begin at offset `at`."""
    for draft in range(count):
        here = at + draft * draft_row
        decay = load_decay(CachedDecay + here, Rates, head, i, c, key_size, value_size, KIND, BK, BV)
        k = tl.load(CachedKey + here + key_head * key_size + i, mask=i < key_size, other=0.0)
        u = tl.load(CachedValue + here + head * value_size + c, mask=c < value_size, other=0.0)
        state = updated(state * decay, k, u, BK, BV)
    return state


@triton.jit
def load_token(
    Q, K, V, Beta, token, q_row, k_row, v_row, beta_row, head, key_head, i, c, key_size, value_size,
):  # fmt: skip
    """Query and key [BK], value [BV] and beta of a token, in float32."""
    key_at = key_head * key_size + i
    q = tl.load(Q + token * q_row + key_at, mask=i < key_size, other=0.0).to(tl.float32)
    k = tl.load(K + token * k_row + key_at, mask=i < key_size, other=0.0).to(tl.float32)
    v = tl.load(V + token * v_row + head * value_size + c, mask=c < value_size, other=0.0).to(tl.float32)
    beta = 0.0
    if Beta is not None:
        beta = tl.load(Beta + token * beta_row + head).to(tl.float32)
    return q, k, v, beta


@triton.jit
def softplus(x):
    """log(1 + exp(x)) by a series of atanh."""
    power = tl.exp(-tl.abs(x))
    s = power / (2.0 + power)
    square = s * s
    p = 1.0 / 13
    p = p * square + 1.0 / 11
    p = p * square + 1.0 / 9
    p = p * square + 1.0 / 7
    p = p * square + 1.0 / 5
    p = p * square + 1.0 / 3
    return tl.maximum(x, 0.0) + 2.0 * (s + s * square * p)


@triton.jit
def gated_decay(Decay, GateRates, GateBias, head):
    """The decay of a head. `Decay` is the address of the token's before the gate."""
    x = tl.load(Decay + head).to(tl.float32) + tl.load(GateBias + head)
    return tl.exp(-tl.load(GateRates + head) * softplus(x))


@triton.jit
def l2_normed(x):
    return x * tl.rsqrt(tl.sum(x * x, 0) + 1e-6)


@triton.jit
def keep_gated(
    GatedDecay, GatedKey, decay, k, token, head, group, i, num_heads, key_size, is_kept,
):  # fmt: skip
    """Write the decay and the key of a draft after their gates, for `keep_drafts_kernel`. Of the programs that have
    them, one writes."""
    if GatedDecay is not None:
        is_kept = is_kept & (tl.program_id(2) == 0)
        tl.store(GatedDecay + token * num_heads + head, decay, mask=is_kept)
        at = (token * (num_heads // group) + head // group) * key_size + i
        tl.store(GatedKey + at, k, mask=is_kept & (head % group == 0) & (i < key_size))


# Sums over a key have the same order in all calls, so the width must not change how a key is loaded.
@triton.jit(
    do_not_specialize=["width", "scale"],
    do_not_specialize_on_alignment=["Position", "Count", "Starts", "Slots", "Saves"],
)
def recur_kernel(
    Q, K, V, Decay, Beta, Rates, GateRates, GateBias, GatedDecay, GatedKey, Base, CachedDecay, CachedKey, CachedValue,
    Position, Count, Starts, Slots, Source, Target, Owed, Saves, Out, num_rows, width, offset, speculative, num_slots,
    q_row, k_row, v_row, decay_row, beta_row, base_row, slot_row, draft_row, drafts, num_heads, group, key_size,
    value_size, scale, KIND: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, MOST_ROWS: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """A program computes BV value dimensions of a head for a chain. The state [BK, BV] stays in registers. With
    GateRates, queries are normed and multiplied by `scale`."""
    begin(CHAINED)
    b = tl.program_id(0)
    places, length, place = chain_of(Starts, Slots, b, num_rows, width, speculative, num_slots, MOST_ROWS)
    if length == 0:
        return
    head, key_head = tl.program_id(1), tl.program_id(1) // group
    i, c = tl.arange(0, BK), tl.program_id(2) * BV + tl.arange(0, BV)
    blocks = tl.cdiv(value_size, 16)
    at = (head * blocks + c[None, :] // 16) * key_size * 16 + i[:, None] * 16 + c[None, :] % 16
    is_inside = (i[:, None] < key_size) & (c[None, :] < blocks * 16)
    slot = tl.load(Slots + b)
    target = Base + tl.load(Target + slot) * base_row + at
    at_slot = slot * slot_row
    is_new = starts_text(Position, Count, b, offset)
    source = Base + tl.load(Source + slot) * base_row + at
    state = tl.load(source, mask=is_inside & (is_new == 0), other=0.0)
    owed = tl.where(is_new, 0, tl.minimum(tl.maximum(tl.load(Owed + slot), 0), drafts)).to(tl.int32)
    state = apply_drafts(
        state, owed, CachedDecay, CachedKey, CachedValue, Rates, at_slot, draft_row, head, key_head, i, c, key_size,
        value_size, KIND, BK, BV,
    )  # fmt: skip
    row = b
    for number in range(length):
        first, count = first_and_count(Starts, row, num_rows, width)
        first, count = first.to(tl.int64), count.to(tl.int32)
        is_speculative = row < speculative
        # A token is loaded one iteration ahead, because the arithmetic is shorter than the latency of the memory.
        q, k, v, beta = load_token(
            Q, K, V, Beta, first, q_row, k_row, v_row, beta_row, head, key_head, i, c, key_size, value_size
        )
        for t in range(count):
            token = first + t
            following = first + tl.minimum(t + 1, count - 1)
            next_q, next_k, next_v, next_beta = load_token(
                Q, K, V, Beta, following, q_row, k_row, v_row, beta_row, head, key_head, i, c, key_size, value_size
            )  # fmt: skip
            of_token = Decay + token * decay_row
            is_kept = is_speculative & (t > 0) & (t <= drafts)
            if GateRates is None:
                decay = load_decay(of_token, Rates, head, i, c, key_size, value_size, KIND, BK, BV)
            else:
                decay = gated_decay(of_token, GateRates, GateBias, head)
                q, k, beta = l2_normed(q) * scale, l2_normed(k), 1.0 / (1.0 + tl.exp(-beta))
                keep_gated(
                    GatedDecay, GatedKey, decay, k, token, head, group, i, num_heads, key_size, is_kept
                )
            state = state * decay
            u = v
            if Beta is not None:
                u = beta * (v - tl.sum(state * k[:, None], 0))
            state = updated(state, k, u, BK, BV)
            out = tl.sum(state * q[:, None], 0).to(Out.dtype.element_ty)
            tl.store(Out + (token * num_heads + head) * value_size + c, out, mask=c < value_size)
            tl.store(target, state, mask=is_inside & is_speculative & (t == 0))
            kept = CachedValue + at_slot + (t - 1) * draft_row + head * value_size + c
            tl.store(kept, u, mask=(c < value_size) & is_kept)
            q, k, v, beta = next_q, next_k, next_v, next_beta
        tl.store(target, state, mask=is_inside & (is_speculative == 0) & (number == length - 1))
        if Saves is not None:
            saved = tl.load(Saves + row)
            tl.store(
                Base + saved * base_row + at, state, mask=is_inside & (is_speculative == 0) & (saved >= 0)
            )
        place, row = next_place(places, place, num_rows)


@triton.jit(do_not_specialize_on_alignment=["Starts", "Slots"])
def keep_drafts_kernel(
    K, Decay, CachedKey, CachedDecay, Starts, Slots, num_rows, width, num_slots, k_row, decay_row, slot_row, draft_row,
    key_floats, decay_floats, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Keeps the keys and decays of a speculative row's draft. Several programs of `recur_kernel` read the old ones, so
    it does not write them."""
    begin(CHAINED)
    b, draft = tl.program_id(0), tl.program_id(1)
    first, count = first_and_count(Starts, b, num_rows, width)
    slot = tl.load(Slots + b)
    if (count > draft + 1) & (slot >= 0) & (slot < num_slots - 1):
        token = first.to(tl.int64) + draft + 1
        at = slot * slot_row + draft * draft_row
        e = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
        key = tl.load(K + token * k_row + e, mask=e < key_floats)
        tl.store(CachedKey + at + e, key.to(tl.float32), mask=e < key_floats)
        decay = tl.load(Decay + token * decay_row + e, mask=e < decay_floats)
        tl.store(CachedDecay + at + e, decay.to(tl.float32), mask=e < decay_floats)


@triton.jit
def settle_recurrence_kernel(
    Base, CachedDecay, CachedKey, CachedValue, Rates, Target, Slots, Targets, Counts, num_slots, base_row, slot_row,
    draft_row, drafts, group, key_size, value_size, KIND: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    begin(CHAINED)
    n, head = tl.program_id(0), tl.program_id(1)
    slot, target = tl.load(Slots + n), tl.load(Targets + n)
    if (slot < 0) | (slot >= num_slots - 1) | (target < 0):
        return
    i, c = tl.arange(0, BK), tl.program_id(2) * BV + tl.arange(0, BV)
    blocks = tl.cdiv(value_size, 16)
    at = (head * blocks + c[None, :] // 16) * key_size * 16 + i[:, None] * 16 + c[None, :] % 16
    is_inside = (i[:, None] < key_size) & (c[None, :] < blocks * 16)
    state = tl.load(Base + tl.load(Target + slot) * base_row + at, mask=is_inside, other=0.0)
    count = tl.minimum(tl.maximum(tl.load(Counts + n), 0), drafts).to(tl.int32)
    state = apply_drafts(
        state, count, CachedDecay, CachedKey, CachedValue, Rates, slot * slot_row, draft_row, head, head // group, i, c,
        key_size, value_size, KIND, BK, BV,
    )  # fmt: skip
    tl.store(Base + target * base_row + at, state, mask=is_inside)


@triton.jit
def load_window(
    Window, Inputs, source, slot, owed, is_new, window_row, slot_row, draft_row, c, channels, TAPS: tl.constexpr,
    KEPT: tl.constexpr,
):  # fmt: skip
    """The inputs [KEPT, channels of a program] before the next token, after `owed` drafts, oldest first."""
    j = tl.arange(0, KEPT)[:, None]
    at = owed + j
    is_kept = (j < TAPS - 1) & (c[None, :] < channels) & (is_new == 0)
    of_window = Window + source * window_row + at * channels + c[None, :]
    of_drafts = Inputs + slot * slot_row + (at - TAPS + 1) * draft_row + c[None, :]
    before = tl.load(of_window, mask=is_kept & (at < TAPS - 1), other=0.0)
    return tl.where(at < TAPS - 1, before, tl.load(of_drafts, mask=is_kept & (at >= TAPS - 1), other=0.0))


@triton.jit
def input_at(X, window, first, number, x_row, c, channels, TAPS: tl.constexpr, KEPT: tl.constexpr):
    """The input of token `number` of a row whose tokens begin at `first`, in float32. Negative numbers are in the
    window before the row."""
    j = tl.arange(0, KEPT)[:, None]
    before = tl.sum(tl.where(j == number + TAPS - 1, window, 0.0), 0)
    is_new = (number >= 0) & (c < channels)
    return tl.where(
        number >= 0, tl.load(X + (first + number) * x_row + c, mask=is_new, other=0.0).to(tl.float32), before
    )


@triton.jit
def silu_of(x, SILU: tl.constexpr):
    if SILU:
        x = x / (1.0 + tl.exp(-x))
    return x


@triton.jit(do_not_specialize_on_alignment=["Position", "Count", "Starts", "Slots", "Saves"])
def convolve_kernel(
    X, Weight, Bias, Window, Inputs, Position, Count, Starts, Slots, Source, Target, Owed, Saves, Out, num_rows, width,
    offset, speculative, num_slots, x_row, weight_row, weight_tap, window_row, slot_row, draft_row, drafts, channels,
    SILU: tl.constexpr, TAPS: tl.constexpr, KEPT: tl.constexpr, BC: tl.constexpr, MOST_ROWS: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """A program computes BC channels of a chain and writes its window: of parts of prompts only the first TAPS - 1
    tokens, of speculative rows all. The others do not need the window."""
    begin(CHAINED)
    b = tl.program_id(0)
    places, length, place = chain_of(Starts, Slots, b, num_rows, width, speculative, num_slots, MOST_ROWS)
    if length == 0:
        return
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    j = tl.arange(0, KEPT)[:, None]
    slot = tl.load(Slots + b)
    is_new = starts_text(Position, Count, b, offset)
    owed = tl.minimum(tl.maximum(tl.load(Owed + slot), 0), drafts)
    source, target = tl.load(Source + slot), tl.load(Target + slot)
    window = load_window(
        Window, Inputs, source, slot, owed, is_new, window_row, slot_row, draft_row, c, channels, TAPS, KEPT
    )
    tl.debug_barrier()  # other threads overwrite what this one reads
    row = b
    for number in range(length):
        first, count = first_and_count(Starts, row, num_rows, width)
        first, count = first.to(tl.int64), count.to(tl.int32)
        is_speculative = row < speculative
        for t in range(tl.where(is_speculative, count, tl.minimum(count, TAPS - 1))):
            total = tl.zeros((BC,), tl.float32)
            if Bias is not None:
                total = tl.load(Bias + c, mask=c < channels, other=0.0).to(tl.float32)
            for tap in tl.static_range(TAPS):
                weight = tl.load(Weight + c * weight_row + tap * weight_tap, mask=c < channels, other=0.0)
                x = input_at(X, window, first, t - TAPS + 1 + tap, x_row, c, channels, TAPS, KEPT)
                total = tl.fma(weight.to(tl.float32), x, total)
            out = silu_of(total, SILU).to(Out.dtype.element_ty)
            tl.store(Out + (first + t) * channels + c, out, mask=c < channels)
            kept = Inputs + slot * slot_row + (t - 1) * draft_row + c
            newest = tl.load(X + (first + t) * x_row + c, mask=c < channels, other=0.0).to(tl.float32)
            tl.store(kept, newest, mask=(c < channels) & is_speculative & (t > 0) & (t <= drafts))
        taken = tl.where(is_speculative, 1, count)
        after = tl.zeros((KEPT, BC), tl.float32)
        for n in tl.static_range(TAPS - 1):
            x = input_at(X, window, first, taken - TAPS + 1 + n, x_row, c, channels, TAPS, KEPT)
            after = tl.where(j == n, x[None, :], after)
        window = after
        is_kept = (j < TAPS - 1) & (c[None, :] < channels)
        at = j * channels + c[None, :]
        tl.store(Window + target * window_row + at, window, mask=is_kept & (number == length - 1))
        if Saves is not None:
            saved = tl.load(Saves + row)
            tl.store(
                Window + saved * window_row + at, window, mask=is_kept & (is_speculative == 0) & (saved >= 0)
            )
        place, row = next_place(places, place, num_rows)


@triton.jit(do_not_specialize_on_alignment=["Starts"])
def convolve_prompts_kernel(
    X, Weight, Bias, Starts, Slots, Out, num_tokens, num_rows, width, speculative, num_slots, x_row, weight_row,
    weight_tap, channels, SILU: tl.constexpr, TAPS: tl.constexpr, BC: tl.constexpr, TOKENS: tl.constexpr,
    MOST_ROWS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """A program computes BC channels of TOKENS tokens of parts of prompts, without the first TAPS - 1 of each part."""
    begin(CHAINED)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    if Starts is None:
        row = token // width
        first = row * width
        is_inside = token < num_tokens
    else:
        rows = tl.arange(0, MOST_ROWS)
        starts = tl.load(Starts + 1 + rows, mask=rows < num_rows, other=1 << 40)
        row = tl.sum((starts[None, :] <= token[:, None]).to(tl.int32), 1)
        is_inside = row < num_rows
        first = tl.load(Starts + row, mask=is_inside, other=0).to(tl.int32)
    slot = tl.load(Slots + row, mask=is_inside, other=-1)
    has_slot = (slot >= 0) & (slot < num_slots - 1)
    is_inside = is_inside & has_slot & (row >= speculative) & (token - first >= TAPS - 1)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    mask = is_inside[:, None] & (c[None, :] < channels)
    total = tl.zeros((TOKENS, BC), tl.float32)
    if Bias is not None:
        total += tl.load(Bias + c, mask=c < channels, other=0.0).to(tl.float32)[None, :]
    place = token.to(tl.int64)[:, None]
    for tap in tl.static_range(TAPS):
        weight = tl.load(Weight + c * weight_row + tap * weight_tap, mask=c < channels, other=0.0).to(
            tl.float32
        )
        x = tl.load(X + (place - TAPS + 1 + tap) * x_row + c[None, :], mask=mask, other=0.0).to(tl.float32)
        total = tl.fma(tl.broadcast_to(weight[None, :], (TOKENS, BC)), x, total)
    out = silu_of(total, SILU).to(Out.dtype.element_ty)
    tl.store(Out + place * channels + c[None, :], out, mask=mask)


@triton.jit
def settle_window_kernel(
    Window, Inputs, Target, Slots, Targets, Counts, num_slots, window_row, slot_row, draft_row, drafts, channels,
    TAPS: tl.constexpr, KEPT: tl.constexpr, BC: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    begin(CHAINED)
    n = tl.program_id(0)
    slot, target = tl.load(Slots + n), tl.load(Targets + n)
    if (slot < 0) | (slot >= num_slots - 1) | (target < 0):
        return
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    j = tl.arange(0, KEPT)[:, None]
    owed = tl.minimum(tl.maximum(tl.load(Counts + n), 0), drafts)
    window = load_window(
        Window, Inputs, tl.load(Target + slot), slot, owed, False, window_row, slot_row, draft_row, c, channels, TAPS,
        KEPT,
    )  # fmt: skip
    tl.debug_barrier()  # the target may be the source
    at = Window + target * window_row + j * channels + c[None, :]
    tl.store(at, window, mask=(j < TAPS - 1) & (c[None, :] < channels))


def recur(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor | None,
    rates: Tensor | None,
    gate_rates: Tensor | None,
    gate_bias: Tensor | None,
    cache_base: Tensor,
    cache_decay: Tensor,
    cache_key: Tensor,
    cache_value: Tensor,
    position: Tensor,
    count: Tensor | None,
    starts: Tensor | None,
    width: int,
    offset: int,
    slots: Tensor,
    source: Tensor,
    target: Tensor,
    owed: Tensor,
    num_speculative: int,
    saves: Tensor | None,
    out: Tensor,
) -> None:
    """Launch `weft.ops.recurrence.recur`; `out` [N, Hv, Dv] is contiguous."""
    num_rows, num_slots, drafts = slots.shape[0], owed.shape[0], cache_value.shape[1]
    heads, key_heads, key_size, value_size = cache_base.shape[1], *cache_key.shape[2:], cache_value.shape[3]
    kind = decay_kind(decay, rates)
    grid, sizes, options = _blocks(kind, heads, key_size, value_size)
    keeps_drafts = num_speculative > 0 and drafts > 0 and width > 1
    gated_decay, gated_key = None, None
    if gate_rates is not None and keeps_drafts:
        gated_decay = cache_decay.new_empty(len(out), heads)
        gated_key = cache_key.new_empty(len(out), key_heads, key_size)
    recur_kernel[(num_rows, *grid)](
        q, k, v, decay, beta, rates, gate_rates, gate_bias, gated_decay, gated_key, cache_base, cache_decay, cache_key,
        cache_value, position, count, starts, slots, source, target, owed, saves, out, num_rows, width, offset,
        num_speculative, num_slots, q.stride(0), k.stride(0), v.stride(0), decay.stride(0),
        0 if beta is None else beta.stride(0), cache_base.stride(0), cache_value.stride(0), cache_value.stride(1),
        drafts, heads, heads // key_heads, key_size, value_size, key_size**-0.5, kind, *sizes,
        triton.next_power_of_2(num_rows), **chain_options(out), **options,
    )  # fmt: skip
    if not keeps_drafts:
        return
    if gated_decay is not None and gated_key is not None:
        k, decay = gated_key, gated_decay
    key_floats, decay_floats = key_heads * key_size, cache_decay[0, 0].numel()
    pieces = triton.cdiv(max(key_floats, decay_floats), BLOCK)
    keep_drafts_kernel[(num_speculative, min(drafts, width - 1), pieces)](
        k, decay, cache_key, cache_decay, starts, slots, num_rows, width, num_slots, k.stride(0), decay.stride(0),
        cache_value.stride(0), cache_value.stride(1), key_floats, decay_floats, BLOCK, **chain_options(out),
    )  # fmt: skip


def settle_recurrence(
    base: Tensor,
    decay: Tensor,
    key: Tensor,
    value: Tensor,
    rates: Tensor | None,
    target: Tensor,
    slots: Tensor,
    targets: Tensor,
    counts: Tensor,
) -> None:
    """Launch `weft.ops.recurrence.settle_recurrence`."""
    heads, key_heads, key_size, value_size = base.shape[1], *key.shape[2:], value.shape[3]
    kind = decay_kind(decay[0], rates)
    grid, sizes, options = _blocks(kind, heads, key_size, value_size)
    settle_recurrence_kernel[(slots.shape[0], *grid)](
        base, decay, key, value, rates, target, slots, targets, counts, target.shape[0], base.stride(0),
        value.stride(0), value.stride(1), value.shape[1], heads // key_heads, key_size, value_size,
        kind, *sizes, **chain_options(base), **options,
    )  # fmt: skip


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    window: Tensor,
    inputs: Tensor,
    position: Tensor,
    count: Tensor | None,
    starts: Tensor | None,
    width: int,
    offset: int,
    slots: Tensor,
    source: Tensor,
    target: Tensor,
    owed: Tensor,
    num_speculative: int,
    saves: Tensor | None,
    silu: bool,
    out: Tensor,
) -> None:
    """Launch `weft.ops.recurrence.convolve`; `out` [N, C] is contiguous."""
    num_rows, num_slots, (channels, taps) = slots.shape[0], owed.shape[0], weight.shape
    most_rows, pieces = triton.next_power_of_2(num_rows), triton.cdiv(channels, CHANNELS)
    options: dict[str, Any] = {**chain_options(out), "enable_fp_fusion": False}
    convolve_kernel[(num_rows, pieces)](
        x, weight, bias, window, inputs, position, count, starts, slots, source, target, owed, saves, out, num_rows,
        width, offset, num_speculative, num_slots, x.stride(0), weight.stride(0), weight.stride(1), window.stride(0),
        inputs.stride(0), inputs.stride(1), inputs.shape[1], channels, silu, taps, _kept(taps), CHANNELS, most_rows,
        **options,
    )  # fmt: skip
    if num_rows == num_speculative or width < taps:
        return
    num_tokens = out.shape[0]
    convolve_prompts_kernel[(triton.cdiv(num_tokens, TOKENS), pieces)](
        x, weight, bias, starts, slots, out, num_tokens, num_rows, width, num_speculative, num_slots, x.stride(0),
        weight.stride(0), weight.stride(1), channels, silu, taps, CHANNELS, TOKENS, most_rows, **options,
    )  # fmt: skip


def settle_window(
    window: Tensor, inputs: Tensor, target: Tensor, slots: Tensor, targets: Tensor, counts: Tensor
) -> None:
    """Launch `weft.ops.recurrence.settle_window`."""
    taps, channels = window.shape[1] + 1, window.shape[2]
    settle_window_kernel[(slots.shape[0], triton.cdiv(channels, CHANNELS))](
        window, inputs, target, slots, targets, counts, target.shape[0], window.stride(0), inputs.stride(0),
        inputs.stride(1), inputs.shape[1], channels, taps, _kept(taps), CHANNELS, **chain_options(window),
    )  # fmt: skip


def _kept(taps: int) -> int:
    return int(triton.next_power_of_2(max(taps - 1, 1)))


def _blocks(
    kind: int, heads: int, key_size: int, value_size: int
) -> tuple[tuple[int, int], tuple[int, int], dict[str, Any]]:
    """How programs share the states of a row: their grid, the sizes of a program's state, and launch options."""
    rows = triton.next_power_of_2(key_size)
    # Decays of elements take registers, too.
    size = STATE_SIZE // 2 if kind == ELEMENT else STATE_SIZE
    columns = min(max(size // rows, 16), triton.next_power_of_2(max(value_size, 16)))
    warps = min(max(rows * columns // size, 1), 8)
    grid = (heads, triton.cdiv(value_size, columns))
    return grid, (rows, columns), {"num_warps": warps, "enable_fp_fusion": False}

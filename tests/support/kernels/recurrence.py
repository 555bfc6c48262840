"""Layers with a state by slot: a plain reference, and random traces of calls whose every output is checked.

A trace does what an engine does: it reads prompts in parts, verifies drafts and refuses some, saves and loads states,
and gives slots to other texts. All unused storage is NaN.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.models.memory import Convolution, Decay, LayerMemory, Pages, Recurrence, State
from weft.models.states import LayerStates, States
from weft.ops.attention import Rows
from weft.ops.recurrence import DeltaGates, convolve, recur

NAN = float("nan")


@dataclass(frozen=True)
class Kind:
    """A layer: its convolutions, of which every second has a bias, and at most one recurrence. `is_constant`: the decay
    is the same at every position. `has_gates`: the recurrence applies its gates itself."""

    name: str
    convolutions: tuple[Convolution, ...]
    recurrence: Recurrence | None = None
    is_constant: bool = False
    has_gates: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def memory(self) -> LayerMemory:
        parts = () if self.recurrence is None else (self.recurrence,)
        return LayerMemory(state=State(self.convolutions, parts))


KINDS = (
    Kind("gated delta", (Convolution(70, 4),), Recurrence(4, 2, 24, 40, Decay.HEAD, is_delta=True)),
    Kind(
        "gates",
        (Convolution(70, 4),),
        Recurrence(4, 2, 21, 40, Decay.HEAD, is_delta=True),
        has_gates=True,
    ),
    Kind("kda", (Convolution(30, 4), Convolution(41, 4)), Recurrence(3, 3, 17, 32, Decay.KEY, is_delta=True)),
    Kind("mamba 2", (Convolution(300, 4),), Recurrence(6, 2, 16, 24, Decay.HEAD)),
    Kind("mamba 1", (Convolution(48, 2),), Recurrence(1, 1, 16, 100, Decay.ELEMENT)),
    Kind("lightning", (), Recurrence(4, 4, 32, 16, Decay.HEAD), is_constant=True),
    Kind("key decay", (), Recurrence(2, 1, 8, 33, Decay.KEY)),
    Kind("short convolution", (Convolution(64, 3), Convolution(20, 7))),
)


class Layer:
    """A layer with random weights. A token's inputs are a row of floats: those of the convolutions, then q, k, v, decay
    and beta. A token's outputs are a row too."""

    def __init__(self, kind: Kind, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        generator = torch.Generator().manual_seed(3)
        self.kind, self.dtype = kind, dtype

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(device)

        # One weight is as a checkpoint has it, the next as the kernel likes it.
        self.weights = [
            random(c.channels, c.taps) if i % 2 else random(c.taps, c.channels).t()
            for i, c in enumerate(kind.convolutions)
        ]
        self.biases = [random(c.channels) if i % 2 else None for i, c in enumerate(kind.convolutions)]
        self.sizes = [c.channels for c in kind.convolutions]
        self.rates: Tensor | None = None
        self.constant: Tensor | None = None
        self.gates: DeltaGates | None = None
        if (r := kind.recurrence) is not None:
            decay = {Decay.HEAD: 1, Decay.KEY: r.key_size, Decay.ELEMENT: r.value_size}[r.decay]
            keys, values = r.num_key_heads * r.key_size, r.num_heads * r.value_size
            self.sizes += [keys, keys, values, r.num_heads * decay, r.num_heads]
            if r.decay is Decay.ELEMENT:
                self.rates = -random(r.num_heads, r.key_size, r.value_size).abs()
            if kind.is_constant:
                self.constant = torch.rand(r.num_heads, generator=generator).to(device)
            if kind.has_gates:
                self.gates = DeltaGates(random(r.num_heads).abs(), random(r.num_heads))

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Random inputs of `count` tokens."""
        return torch.randn(count, sum(self.sizes), generator=generator).to(self.dtype)

    def _split(
        self, inputs: Tensor
    ) -> tuple[list[Tensor], tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None] | None]:
        parts = list(inputs.split(self.sizes, 1))
        if (r := self.kind.recurrence) is None:
            return parts, None
        q, k, v, decay, beta = parts[-5:]
        q, k = (x.unflatten(1, (r.num_key_heads, r.key_size)) for x in (q, k))
        if self.kind.has_gates:
            return parts[:-5], (q, k, v.unflatten(1, (r.num_heads, r.value_size)), decay, beta)
        q, k = (x * torch.rsqrt((x * x).sum(2, keepdim=True) + 1e-6) for x in (q, k))
        v = v.unflatten(1, (r.num_heads, r.value_size))
        if self.constant is not None:
            decay = self.constant.to(inputs.dtype).expand(len(inputs), r.num_heads)
        elif r.decay is Decay.ELEMENT:
            decay = decay.sigmoid().unflatten(1, (r.num_heads, -1))
        else:
            decay = (
                decay.sigmoid() if r.decay is Decay.HEAD else decay.sigmoid().unflatten(1, (r.num_heads, -1))
            )
        return parts[:-5], (q, k, v, decay, beta.sigmoid() if r.is_delta else None)

    def run(self, inputs: Tensor, states: LayerStates, rows: Rows) -> Tensor:
        """The outputs of a call by weft's operations, in the inputs' dtype."""
        xs, of_recurrence = self._split(inputs)
        outs = []
        for i, (x, cache) in enumerate(zip(xs, states.convolutions, strict=True)):
            outs.append(convolve(x, self.weights[i], self.biases[i], cache, rows, silu=i % 2 == 0))
        if of_recurrence is not None:
            outs.append(recur(*of_recurrence, states.recurrences[0], rows, self.rates, self.gates).flatten(1))
        return torch.cat(outs, 1)

    def textbook(self, inputs: Tensor) -> Tensor:
        """The outputs of a whole text in plain torch, in float64, on the CPU."""
        layer = Layer(self.kind, self.dtype)
        return layer._textbook(inputs)

    def _textbook(self, inputs: Tensor) -> Tensor:
        xs, of_recurrence = self._split(inputs)
        outs = []
        for i, x in enumerate(xs):
            weight, bias = self.weights[i].double(), self.biases[i]
            padded = F.pad(x.double().t(), (weight.shape[1] - 1, 0))
            out = F.conv1d(
                padded, weight[:, None], None if bias is None else bias.double(), groups=len(weight)
            ).t()
            outs.append(F.silu(out) if i % 2 == 0 else out)
        if of_recurrence is not None:
            if self.gates is not None:
                of_recurrence = gated(*of_recurrence, self.gates)
            outs.append(textbook_recurrence(*of_recurrence, self.rates).flatten(1))
        return torch.cat(outs, 1)


def gated(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor | None, gates: DeltaGates
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The inputs of a recurrence after its gates, in float64."""
    assert beta is not None
    q, k = (x.double() * ((x.double() ** 2).sum(2, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
    decay = (-gates.rates.double() * F.softplus(decay.double() + gates.bias.double())).exp()
    return q * q.shape[2] ** -0.5, k, v, decay, beta.double().sigmoid()


def textbook_recurrence(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor | None, rates: Tensor | None = None
) -> Tensor:
    """`recur` of a whole text, in plain torch and float64."""
    heads = v.shape[1]
    q, k, v, decay = (x.double() for x in (q, k, v, decay))
    q, k = (x.repeat_interleave(heads // x.shape[1], 1) for x in (q, k))
    state, outs = v.new_zeros(heads, k.shape[2], v.shape[2]), []
    for t in range(len(q)):
        if rates is not None:
            factor = (decay[t][:, None, :] * rates.double()).exp()
        else:
            factor = decay[t][:, None, None] if decay.dim() == 2 else decay[t][:, :, None]
        state = state * factor
        u = v[t]
        if beta is not None:
            u = beta[t].double()[:, None] * (u - torch.einsum("hkv,hk->hv", state, k[t]))
        state = state + k[t][:, :, None] * u[:, None, :]
        outs.append(torch.einsum("hkv,hk->hv", state, q[t]))
    return torch.stack(outs)


@dataclass
class Piece:
    """A row of a call: tokens of the text of a slot, from position `begin` on. Without a slot it pads."""

    inputs: Tensor
    slot: int | None = None
    begin: int = 0
    saves: int = -1


class Machine:
    """A layer with its states. In the model, a layer without a state precedes it, and another one with a state follows.
    All storage is NaN at first."""

    def __init__(
        self,
        layer: Layer,
        num_slots: int = 4,
        num_snapshots: int = 0,
        max_drafts: int = 4,
        has_beams: bool = False,
        device: str = "cpu",
    ) -> None:
        memories = (LayerMemory(Pages(1, 8, 8)), layer.kind.memory, KINDS[-1].memory)
        self.layer, self.device = layer, device
        self.states = States(memories, num_slots, num_snapshots, max_drafts, has_beams, device)
        self.states.storage.fill_(NAN)
        self.states.drafts.fill_(NAN)
        self.num_slots, self.max_drafts = num_slots, max_drafts

    @property
    def of_layer(self) -> LayerStates:
        states = self.states.layers[1]
        assert states is not None
        return states

    def rows(self, speculative: Sequence[Piece], parts: Sequence[Piece], ragged: bool = True) -> Rows:
        """The rows of a call. Without `ragged` all have the same number of tokens."""
        pieces = [*speculative, *parts]
        counts = [len(piece.inputs) for piece in pieces]

        def integers(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=self.device)

        slots = integers([self.num_slots if piece.slot is None else piece.slot for piece in pieces])
        saves = integers([piece.saves for piece in pieces])
        # The position is a sum of three numbers.
        return Rows(
            torch.zeros(len(pieces), 1, dtype=torch.int32, device=self.device),
            integers([piece.begin - 3 + b for b, piece in enumerate(pieces)]),
            max(counts),
            integers([2 - b for b in range(len(pieces))]),
            1,
            starts=integers([0, *counts]).cumsum(0) if ragged else None,
            num_short=len(speculative),
            short_width=max([len(piece.inputs) for piece in speculative], default=0),
            states=self.states.rows(slots, len(speculative), saves),
        )

    def call(
        self,
        speculative: Sequence[Piece] = (),
        parts: Sequence[Piece] = (),
        ragged: bool = True,
        num_padding: int = 3,
    ) -> list[Tensor]:
        """The outputs of each piece, by one call. Tokens that pad a ragged call are NaN."""
        pieces = [*speculative, *parts]
        inputs = torch.cat([piece.inputs for piece in pieces]).to(self.device)
        if ragged:
            inputs = F.pad(inputs, (0, 0, 0, num_padding), value=NAN)
        out = self.layer.run(inputs, self.of_layer, self.rows(speculative, parts, ragged))
        counts = [len(piece.inputs) for piece in pieces]
        return list(out[: sum(counts)].cpu().split(counts))

    def integers(self, *values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def forget(self, slot: int) -> None:
        """Overwrite all that a slot has."""
        self.states.storage[slot] = NAN
        self.states.drafts[slot] = NAN

    def whole(self, inputs: Tensor) -> Tensor:
        """The outputs of a text that is read by one call, alone, in storage of its own."""
        machine = Machine(self.layer, num_slots=1, max_drafts=0, device=self.device)
        return machine.call(parts=[Piece(inputs, 0)], num_padding=0)[0]


@dataclass
class _Text:
    """The texts of a slot: inputs of its certain tokens, and those of its prompt that are not read yet."""

    certain: Tensor
    prompt: Tensor
    accepted: int = 0  # drafts of the last iteration, the last of `certain`


@dataclass
class Trace:
    """Random calls to a machine. `wrong` names the outputs whose bits are not those of the whole text by itself, and
    `error` is the largest difference to the textbook."""

    machine: Machine
    seed: int
    share: float = (
        1.0  # of rows that are checked; what is wrong with the others shows in later rows of their texts
    )
    wrong: list[str] = field(default_factory=list)
    error: float = 0.0
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chooser, self.generator = random.Random(self.seed), torch.Generator().manual_seed(self.seed)
        self.texts: dict[int, _Text] = {}
        self.snapshots: dict[int, Tensor] = {}

    def run(self, num_calls: int) -> Trace:
        for number in range(num_calls):
            for slot in range(self.machine.num_slots):
                self._change(slot)
            self._call(number)
        return self

    def _draw(self, least: int, most: int) -> Tensor:
        return self.machine.layer.draw(self.chooser.randint(least, most), self.generator)

    def _change(self, slot: int) -> None:
        """Begin, load, end or fork a text, or do nothing."""
        machine, states, text = self.machine, self.machine.states, self.texts.get(slot)
        chance = self.chooser.random()
        if text is None:
            if chance < 0.5 and self.snapshots:
                row = self.chooser.choice(sorted(self.snapshots))
                machine.forget(slot)
                states.load(machine.integers(states.first_snapshot + row), machine.integers(slot))
                self.texts[slot] = _Text(self.snapshots[row], self._draw(0, 9))
                self.done["loaded"] += 1
            elif chance < 0.8:
                states.open(machine.integers(slot, machine.num_slots))
                self.texts[slot] = _Text(self._draw(0, 0), self._draw(1, 30))
                self.done["begun"] += 1
        elif chance < 0.1 and states.num_snapshots and len(text.certain):
            # A text ends before its last accepted drafts, and its state there is kept.
            count = self.chooser.randint(0, text.accepted)
            row = self.chooser.randrange(states.num_snapshots)
            states.settle(
                machine.integers(machine.num_slots, slot),
                machine.integers(states.first_snapshot, states.first_snapshot + row),
                machine.integers(1, count),
            )
            self.snapshots[row] = text.certain[: len(text.certain) - text.accepted + count]
            machine.forget(slot)
            del self.texts[slot]
            self.done["settled"] += 1
        elif chance < 0.2 and len(text.certain):
            # Another slot goes on with the same text.
            others = [other for other in range(machine.num_slots) if other not in self.texts]
            if others:
                other = self.chooser.choice(others)
                machine.forget(other)
                states.open(machine.integers(other))
                states.settle(
                    machine.integers(slot), machine.integers(other), machine.integers(text.accepted)
                )
                self.texts[other] = replace(text, accepted=0)
                self.done["forked"] += 1

    def _call(self, number: int) -> None:
        """One call for all texts, and what the engine does after it."""
        machine, choose = self.machine, self.chooser
        speculative: list[Piece] = []
        parts: list[Piece] = []
        slots = list(self.texts)
        choose.shuffle(slots)
        for slot in slots:
            text = self.texts[slot]
            begin = len(text.certain)
            for _ in range(choose.randint(0, 2)):
                count = choose.randint(0, max(len(text.prompt) - 1, 0))
                part, text.prompt = text.prompt[:count], text.prompt[count:]
                piece = Piece(part, slot, begin)
                if count and machine.states.num_snapshots and choose.random() < 0.3:
                    row = choose.randrange(machine.states.num_snapshots)
                    taken = {p.saves - machine.states.first_snapshot for p in parts}
                    if row not in taken:
                        piece.saves = machine.states.first_snapshot + row
                parts.append(piece)
                begin += count
            if len(text.prompt) <= 1 and choose.random() < 0.9:
                first = text.prompt if len(text.prompt) else self._draw(1, 1)
                speculative.append(Piece(torch.cat((first, self._draw(0, machine.max_drafts))), slot, begin))
                text.prompt = text.prompt[:0]
        if choose.random() < 0.5:
            speculative.append(Piece(self._draw(0, 4) * NAN))
            parts.append(Piece(self._draw(1, 4) * NAN))
        choose.shuffle(speculative)
        if not sum(len(piece.inputs) for piece in (*speculative, *parts)):
            return
        outputs = machine.call(speculative, parts, num_padding=choose.randint(0, 3))
        for piece, output in zip(parts, outputs[len(speculative) :], strict=True):
            self._check(piece, output, len(piece.inputs))
            if piece.saves >= 0 and piece.slot is not None:
                row = piece.saves - machine.states.first_snapshot
                self.snapshots[row] = self.texts[piece.slot].certain
                self.done["saved"] += 1
        for piece, output in zip(speculative, outputs, strict=False):
            if piece.slot is None:
                continue
            accepted = choose.randint(0, len(piece.inputs) - 1)
            self._check(piece, output, 1 + accepted)
            self.texts[piece.slot].accepted = accepted
            machine.states.owed[piece.slot] = accepted
            self.done["accepted"] += accepted
            self.done["refused"] += len(piece.inputs) - 1 - accepted

    def _check(self, piece: Piece, output: Tensor, num_certain: int) -> None:
        """Compare the outputs of a row, refused drafts included, and append its certain tokens to its text."""
        if piece.slot is None or not len(piece.inputs):
            return
        text = self.texts[piece.slot]
        inputs = torch.cat((text.certain, piece.inputs))
        text.certain, text.accepted = inputs[: piece.begin + num_certain], 0
        if self.chooser.random() >= self.share:
            return
        whole = self.machine.whole(inputs)
        if not torch.equal(output, whole[piece.begin :]):
            self.wrong.append(f"slot {piece.slot}, {len(piece.inputs)} tokens from {piece.begin} on")
        if self.chooser.random() < 0.2:  # because the textbook is slow
            off = (whole.double() - self.machine.layer.textbook(inputs)).abs().max()
            self.error = max(self.error, float(off.nan_to_num(nan=float("inf"))))

"""Guided decoding with drafts in a captured loop around a model that is not weft's.

    python examples/guided_captured_loop.py --regex '(ab|cd){2,4}!' --device cpu

One graph holds an iteration: the target's forward over a token and its drafts, the masks, verification, and
two guided drafts. The host only sets the requests of the batch, and launches. On the CPU the same
program runs on `weft.runtime.cpu`. The model is a small untrained module, so the answers have no meaning, but
they match their guides.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from weft import Guide
from weft.grammar import GuideCompiler, Vocabulary
from weft.guided import CapturableGuidedDecoder, GuidedRequest
from weft.runtime import Runtime, get

END, NUM_DRAFTS, MAX_TOKENS = 0, 2, 48
VOCABULARY = Vocabulary.from_tokens([b""] + [bytes([byte]) for byte in range(1, 256)], end_ids=[END])


class Bigram(nn.Module):
    """Logits [..., V] of the token after a token at a position."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.token = nn.Embedding(VOCABULARY.vocab_size, width)
        self.position = nn.Embedding(2 * MAX_TOKENS, width)
        self.head = nn.Linear(width, VOCABULARY.vocab_size)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        hidden = self.token(tokens.clamp(min=0)) + self.position(positions.clamp(max=2 * MAX_TOKENS - 1))
        return self.head(torch.tanh(hidden))


class Loop:
    """A captured iteration over B rows, each a request with a slot. The constructor allocates the tensors that
    launches share.
    """

    def __init__(self, runtime: Runtime, batch: int) -> None:
        self.runtime, self.stream = runtime, runtime.stream()
        device = runtime.device
        self.target, self.drafter = Bigram(64, seed=1).to(device), Bigram(16, seed=2).to(device)
        self.decoder = CapturableGuidedDecoder(
            runtime,
            self.stream,
            num_slots=batch,
            max_drafts=NUM_DRAFTS,
            vocab_size=VOCABULARY.vocab_size,
            end_token_ids=VOCABULARY.end_ids,
            batch_size=batch,
        )
        self.length = torch.zeros(batch + 1, dtype=torch.int64, device=device)
        self.last = torch.zeros(batch + 1, dtype=torch.int64, device=device)
        self.text = torch.zeros(batch + 1, 2 * MAX_TOKENS, dtype=torch.int64, device=device)
        self.logits = torch.zeros(batch, 1 + NUM_DRAFTS, VOCABULARY.vocab_size, device=device)
        self.draft_logits = torch.zeros(batch, VOCABULARY.vocab_size, device=device)
        self.accepted, self.new, self.draft = (torch.zeros_like(self.decoder.slots) for _ in range(3))

    def step(self) -> None:
        """One iteration. Only enqueues, so it can be captured."""
        with self.decoder.step():
            self.stream.launch(self.forward)
            self.decoder.execute(self.logits)
            self.stream.launch(self.verify)
            self.decoder.rollback_rejected_tokens(self.accepted, self.new)
            for j in range(NUM_DRAFTS):
                self.stream.launch(self.draft_forward, j)
                self.decoder.execute_draft_batch(self.draft_logits)
                self.stream.launch(self.pick)
                self.decoder.add_draft_batch(self.draft)

    def forward(self) -> None:
        slots = self.decoder.slots
        tokens_BT = torch.cat([self.last[slots][:, None], self.decoder.drafts[:, slots].T], dim=1)
        positions_BT = self.length[slots][:, None] + torch.arange(1 + NUM_DRAFTS, device=slots.device)
        self.logits.copy_(self.target(tokens_BT, positions_BT))

    def verify(self) -> None:
        """Keep the drafts that the target would have chosen, and one more token."""
        slots = self.decoder.slots
        tokens_BT = self.logits.argmax(-1)
        matches = tokens_BT[:, :-1] == self.decoder.drafts[:, slots].T
        self.accepted.copy_(matches.long().cumprod(1).sum(1))
        self.new.copy_(tokens_BT.gather(1, self.accepted[:, None])[:, 0])
        room = self.text.shape[1] - tokens_BT.shape[1]
        start = self.length[slots].clamp(max=room)[:, None]
        self.text[slots[:, None], start + torch.arange(1 + NUM_DRAFTS, device=slots.device)] = tokens_BT
        self.last[slots] = self.new
        self.length[slots] = start[:, 0] + self.accepted + 1

    def draft_forward(self, j: int) -> None:
        slots = self.decoder.slots
        tokens = self.last[slots] if j == 0 else self.draft
        self.draft_logits.copy_(self.drafter(tokens, self.length[slots] + j))

    def pick(self) -> None:
        best = self.draft_logits.max(-1)
        self.draft.copy_(torch.where(best.values == -torch.inf, -1, best.indices))

    def run(self, guides: list[Guide]) -> list[str]:
        """The answers of one request per guide."""
        with GuideCompiler(VOCABULARY) as compiler:
            matchers = [compiler.compile(guide).matcher() for guide in guides]
        # One eager iteration of padding first, so that the capture loads and allocates nothing.
        self.decoder.add_batch([])
        self.step()
        self.stream.synchronize()
        with self.runtime.capture(self.stream) as graph:
            self.step()
        for iteration in range(MAX_TOKENS):
            requests = [
                GuidedRequest(slot, matcher if iteration == 0 else None)
                for slot, matcher in enumerate(matchers)
            ]
            self.decoder.add_batch(requests)
            graph.replay()
        self.stream.synchronize()
        graph.close()
        return [self.answer(slot) for slot in range(len(guides))]

    def answer(self, slot: int) -> str:
        code, message = self.decoder.status(slot)
        if code:
            raise SystemExit(f"slot {slot}: {code}: {message}")
        tokens = self.text[slot].tolist()
        tokens = tokens[: tokens.index(END)] if END in tokens else tokens[:MAX_TOKENS]
        return VOCABULARY.decode(tokens).decode(errors="replace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--regex", action="append", help="a guide; give it several times for a batch")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    guides = [Guide.regex(regex) for regex in arguments.regex or ["(ab|cd){2,4}!", "[0-9]{4}"]]
    for text in Loop(get(arguments.device), len(guides)).run(guides):
        print(text)


if __name__ == "__main__":
    main()

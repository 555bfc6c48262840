"""Training examples, which are tokenized once into an .npz file, and batches of similar lengths.

    python data.py OUT.npz [EXAMPLES [KIND [SEED]]]

KIND is a kind of mix.py. Without it, or with "all", the examples are a mix of all kinds.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from config import ASSETS, EOS, EXAMPLES, LONGEST, PAD, TARGET
from mix import SHARES, made
from tokenizers import Tokenizer


def build(path: Path, examples: int, seed: int, kind: str = "all") -> None:
    """Tokenize this many examples of the mix into `path`. Examples that are too long are left out."""
    rng = random.Random(seed)
    tokenizer = Tokenizer.from_file(str(ASSETS / "tokenizer.json"))
    mixed = [made(rng, SHARES if kind == "all" else {kind: 1.0}) for _ in range(examples)]
    prompts = [p.ids for p in tokenizer.encode_batch([e.prompt for e in mixed])]
    answers = [a.ids for a in tokenizer.encode_batch([e.answer for e in mixed], add_special_tokens=False)]
    short = [i for i, (p, a) in enumerate(zip(prompts, answers, strict=True)) if len(p) + len(a) < LONGEST]
    write(path, [prompts[i] for i in short], [answers[i] for i in short])


def write(path: Path, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> None:
    """Save token ids, with an end token after each answer."""
    rows = [p + a + [EOS] for p, a in zip(prompts, answers, strict=True)]
    np.savez(
        path,
        tokens=np.concatenate([np.asarray(row, dtype=np.uint16) for row in rows]),
        lengths=np.asarray([len(row) for row in rows], dtype=np.int32),
        prompts=np.asarray([len(p) for p in prompts], dtype=np.int32),
    )


class Batches:
    """All examples of some files, in memory. `epoch` yields shuffled batches (tokens, answer mask).

    The rows of a batch have similar lengths, or with `by_answer` similar answer lengths first. They are padded to the
    longest.
    """

    def __init__(self, paths: Sequence[Path], batch_size: int, by_answer: bool = False) -> None:
        files = [np.load(path) for path in paths]
        self.tokens = np.concatenate([file["tokens"] for file in files]).astype(np.int64)
        self.lengths = np.concatenate([file["lengths"] for file in files])
        self.prompts = np.concatenate([file["prompts"] for file in files])
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        self.batch_size, self.by_answer = batch_size, by_answer

    def __len__(self) -> int:
        return len(self.lengths) // self.batch_size

    def epoch(self, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """One pass in a random order. The mask marks the positions whose NEXT token belongs to the answer."""
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(self.lengths))
        pool = self.batch_size * 64
        batches = []
        for i in range(0, len(order), pool):
            chunk = order[i : i + pool]
            answers = self.lengths[chunk] - self.prompts[chunk]
            keys = (self.lengths[chunk], answers // 8) if self.by_answer else (self.lengths[chunk],)
            chunk = chunk[np.lexsort(keys)]
            batches += [chunk[j : j + self.batch_size] for j in range(0, len(chunk), self.batch_size)]
        batches = [b for b in batches if len(b) == self.batch_size]
        rng.shuffle(batches)
        for rows in batches:
            yield self._pad(rows)

    def _pad(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        longest = -(-int(self.lengths[rows].max()) // 16) * 16  # few shapes: oneDNN keeps a kernel for each
        tokens = np.full((len(rows), longest), PAD, dtype=np.int64)
        mask = np.zeros((len(rows), longest), dtype=bool)
        for i, row in enumerate(rows):
            start, n = self.starts[row], self.lengths[row]
            tokens[i, :n] = self.tokens[start : start + n]
            mask[i, self.prompts[row] - 1 : n - 1] = True
        return torch.from_numpy(tokens), torch.from_numpy(mask)

    def forever(self, seed: int, skip: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Repeat passes forever. The first `skip` batches are left out."""
        passes, skip = divmod(skip, len(self))
        while True:
            for i, batch in enumerate(self.epoch(seed + passes)):
                if i >= skip:
                    yield batch
            passes, skip = passes + 1, 0


if __name__ == "__main__":
    path, *rest = sys.argv[1:]
    count, kind, seed = (*rest, *(str(EXAMPLES), "all", str(TARGET.seed))[len(rest) :])
    build(Path(path), int(count), int(seed), kind)

"""Training examples, made once and kept as one .npz; batches of like lengths."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from config import ASSETS, EOS, EXAMPLES, PAD, TARGET, load_records
from tokenizers import Tokenizer


def build(path: Path, examples: int, seed: int) -> None:
    """Tokenise `examples` records of the training split into `path`."""
    records = load_records()
    rng = random.Random(seed)
    tokenizer = Tokenizer.from_file(str(ASSETS / "tokenizer.json"))
    made = [records.example(rng) for _ in range(examples)]
    prompts = tokenizer.encode_batch([e.prompt for e in made])
    answers = tokenizer.encode_batch([e.completion for e in made], add_special_tokens=False)
    write(path, [p.ids for p in prompts], [a.ids for a in answers])


def write(path: Path, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> None:
    """Save token ids; an end token is put after each answer."""
    rows = [p + a + [EOS] for p, a in zip(prompts, answers, strict=True)]
    np.savez(
        path,
        tokens=np.concatenate([np.asarray(row, dtype=np.uint16) for row in rows]),
        lengths=np.asarray([len(row) for row in rows], dtype=np.int32),
        prompts=np.asarray([len(p) for p in prompts], dtype=np.int32),
    )


class Batches:
    """All examples of some files, in memory; `epoch` yields (tokens, answer mask), shuffled.

    A batch's rows, padded to its longest, are of like length, or with `by_answer` of like answer length first.
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
        """One pass in a random order; the mask marks the positions whose NEXT token is the answer's."""
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
        """Pass after pass, starting `skip` batches in."""
        passes, skip = divmod(skip, len(self))
        while True:
            for i, batch in enumerate(self.epoch(seed + passes)):
                if i >= skip:
                    yield batch
            passes, skip = passes + 1, 0


if __name__ == "__main__":
    build(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else EXAMPLES, TARGET.seed)

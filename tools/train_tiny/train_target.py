"""Train the Llama of weft-tiny.

python train_target.py --data DATA.npz... --run DIR --steps N [--from ASSETS] [--peak-lr LR] [--resume]
"""

from __future__ import annotations

from dataclasses import replace

import torch
from config import TARGET
from data import Batches
from hf import trainable
from loop import answers_only, arguments, train
from model import Llama
from torch import Tensor
from torch.nn import functional as F


def loss_of(model: Llama, tokens: Tensor, mask: Tensor) -> tuple[Tensor, list[float]]:
    """Return the cross-entropy of the answers' tokens, and the share of them that greedy prediction hits."""
    where = answers_only(mask)
    wanted = tokens.roll(-1, 1).flatten()[where].masked_fill(where == 0, -100)
    hidden, _ = model.hidden(tokens)
    logits = model.logits(hidden.flatten(0, 1)[where])
    right = (logits.argmax(-1) == wanted).sum() / mask.sum()
    return F.cross_entropy(logits.float(), wanted), [right.item()]


def main() -> None:
    """Parse the arguments and train."""
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(TARGET.seed)
    model = trainable(args.start, TARGET)
    settings = replace(TARGET, peak_lr=args.peak_lr or TARGET.peak_lr)
    train(model, loss_of, Batches(args.data, TARGET.batch_size), args, settings, decay=0.05)


if __name__ == "__main__":
    main()

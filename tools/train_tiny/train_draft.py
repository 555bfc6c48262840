"""Train the draft model of weft-tiny: a smaller Llama that imitates the target.

    python train_draft.py --data DATA.npz... --run DIR --steps N [--from ASSETS] [--peak-lr LR] [--resume]

The loss is the cross-entropy with the target's distribution at the answers' positions. The target runs on the same
batch without gradients; nothing is precomputed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from config import ASSETS, DRAFT, TARGET
from data import Batches
from hf import load_llama, trainable
from loop import answers_only, arguments, train
from model import Llama
from torch import Tensor
from unroll import soft_cross_entropy


def loss_of(target: Llama, model: Llama, tokens: Tensor, mask: Tensor) -> tuple[Tensor, list[float]]:
    """Return the loss, and the share of positions where the most likely tokens of both models agree."""
    where = answers_only(mask)
    with torch.no_grad():
        wanted = target.logits(target.hidden(tokens)[0].flatten(0, 1)[where]).float()
    logits = model.logits(model.hidden(tokens)[0].flatten(0, 1)[where]).float()
    real = (where > 0).float()
    right = ((logits.argmax(-1) == wanted.argmax(-1)) * real).sum() / real.sum()
    return (soft_cross_entropy(logits, wanted) * real).sum() / real.sum(), [right.item()]


def main() -> None:
    """Parse the arguments and train."""
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(DRAFT.seed)
    target = load_llama(ASSETS, TARGET)
    model = trainable(args.start and args.start / "draft", DRAFT)
    settings = replace(DRAFT, peak_lr=args.peak_lr or DRAFT.peak_lr)
    train(model, partial(loss_of, target), Batches(args.data, DRAFT.batch_size), args, settings, decay=0.05)


if __name__ == "__main__":
    main()

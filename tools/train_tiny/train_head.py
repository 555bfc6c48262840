"""Train a head of weft-tiny, the EAGLE3 head or the MTP module, on the exported target.

    python train_head.py eagle3|mtp --data DATA.npz... --run DIR --steps N [--vocab DATA.npz...] [--from ASSETS]
        [--peak-lr LR] [--resume]

Each step unrolls the head as drafting does: step 0 reads the target's features, step k its own output of step
k - 1. The target runs on the same batch without gradients; nothing is computed ahead.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from config import ASSETS, BOS, EAGLE3, EOS, MTP, PAD, TARGET, Unrolled
from data import Batches
from eagle3 import Eagle3Head, load_head
from hf import load_llama
from loop import arguments, train
from model import Llama
from mtp import Mtp, load_mtp
from torch import Tensor
from torch.nn import functional as F
from unroll import Head, soft_cross_entropy


def draft_vocab(batches: Batches) -> Tensor:
    """Return the most frequent tokens of the answers, end of text included, sorted."""
    counts = np.zeros(1 << 16, dtype=np.int64)
    for start, length, prompt in zip(batches.starts, batches.lengths, batches.prompts, strict=True):
        np.add.at(counts, batches.tokens[start + prompt : start + length], 1)
    counts[[BOS, PAD]] = 0
    assert counts[EOS] > 0
    keep = np.sort(np.argsort(-counts, kind="stable")[: EAGLE3.draft_vocab_size])
    print(
        f"draft vocabulary covers {counts[keep].sum() / counts.sum():.4f} of the answers' tokens, "
        f"which are of {(counts > 0).sum()} kinds"
    )
    return torch.from_numpy(keep)


def unrolled_loss(
    settings: Unrolled, target: Llama, head: Head, tokens: Tensor, mask: Tensor
) -> tuple[Tensor, list[float]]:
    """Return the weighted loss over the unrolled steps, and the accuracy of each step's greedy drafts.

    The roots are the positions whose next token is the answer's. At step k, root t reads token t+1+k and predicts the
    token after it. The target's distribution at position t+1+k is the label.
    """
    length, width = tokens.shape[1], -(-int(mask.sum(1).max()) // 8) * 8
    roots = (mask.int().argmax(1)[:, None] + torch.arange(width)).clamp(max=length - 1)
    rows = torch.arange(len(tokens))[:, None]
    with torch.no_grad():
        hidden, kept = target.hidden(tokens, EAGLE3.aux_layers)
        last = target.norm(hidden)
        wanted = F.linear(last[rows, roots], target.embed_tokens.weight[head.draft_ids]).float()
    features = head.features(last, kept)
    seen = head.start(target.embed_tokens(tokens.roll(-1, 1)), features, roots)
    feature = features[rows, roots]
    loss, right = torch.zeros(()), []
    for k in range(settings.unroll):
        ahead = (roots + 1 + k).clamp(max=length - 1)
        feature, drafted = head.step(target.embed_tokens(tokens[rows, ahead]), feature, seen)
        # The last real root of a row predicts nothing at step 0, the last two roots nothing at step 1, and so on.
        real = (torch.arange(width) + 1 + k < mask.sum(1, keepdim=True)).nonzero()
        got, want = drafted[real[:, 0], real[:, 1]].float(), wanted[real[:, 0], real[:, 1] + 1 + k]
        loss = loss + settings.decay**k * soft_cross_entropy(got, want).mean()
        right.append((got.argmax(-1) == want.argmax(-1)).float().mean().item())
    return loss, right


def eagle3_head(target: Llama, vocab: Batches, start: Path | None) -> Eagle3Head:
    """Make a head that drafts the most frequent tokens of the answers in `vocab`, new or with the weights of some
    assets."""
    head = Eagle3Head()
    head.set_draft_vocab(draft_vocab(vocab))
    if start is not None:
        head.take_over(load_head(start / "eagle3"))
    return head


def mtp_module(target: Llama, vocab: Batches, start: Path | None) -> Mtp:
    """Make a module that starts from the target's last layer, or load one from some assets. It drafts all tokens."""
    if start is not None:
        return load_mtp(start / "mtp", target.embed_tokens.weight).train()
    module = Mtp(target.embed_tokens.weight)
    module.start_from(target)
    return module


def main() -> None:
    """Parse the arguments and train."""
    parser = arguments(__doc__)
    parser.add_argument("kind", choices=("eagle3", "mtp"))
    parser.add_argument(
        "--vocab", type=Path, nargs="+", help="count the EAGLE3 head's tokens here, not in --data"
    )
    args = parser.parse_args()
    settings: Unrolled = EAGLE3 if args.kind == "eagle3" else MTP
    settings = replace(settings, peak_lr=args.peak_lr or settings.peak_lr)
    torch.set_num_threads(args.threads)
    torch.manual_seed(settings.seed)
    target = load_llama(ASSETS, TARGET)
    batches = Batches(args.data, settings.batch_size, by_answer=True)
    begin = eagle3_head if args.kind == "eagle3" else mtp_module
    vocab = Batches(args.vocab, settings.batch_size) if args.vocab else batches
    head = begin(target, vocab, args.start)
    train(head, partial(unrolled_loss, settings, target), batches, args, settings, decay=0.02)


if __name__ == "__main__":
    main()

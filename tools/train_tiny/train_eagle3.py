"""Train the EAGLE3 head of weft-tiny on the exported target.

    python train_eagle3.py --data DATA.npz --run DIR --steps N [--resume]

Each step unrolls the head as drafting does: step 0 reads the target's features, step k its own output of step
k - 1. The target runs on the same batch without gradients; nothing is computed ahead.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from config import ASSETS, BOS, EOS, HEAD, PAD
from data import Batches
from eagle3 import Eagle3Head, save_head, soft_cross_entropy
from model import Llama
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F
from train_target import learning_rate, optimizer_for


def load_target(directory: Path) -> Llama:
    """The exported target, frozen."""
    model = Llama()
    model.load_state_dict(
        {k.removeprefix("model."): v for k, v in load_file(directory / "model.safetensors").items()}
    )
    return model.eval().requires_grad_(False)


def draft_vocab(batches: Batches) -> Tensor:
    """The most frequent tokens of the answers, end of text included, sorted."""
    counts = np.zeros(1 << 16, dtype=np.int64)
    for start, length, prompt in zip(batches.starts, batches.lengths, batches.prompts, strict=True):
        np.add.at(counts, batches.tokens[start + prompt : start + length], 1)
    counts[[BOS, PAD]] = 0
    assert counts[EOS] > 0
    keep = np.sort(np.argsort(-counts, kind="stable")[: HEAD.draft_vocab_size])
    print(
        f"draft vocabulary covers {counts[keep].sum() / counts.sum():.4f} of the answers' tokens, "
        f"which are of {(counts > 0).sum()} kinds"
    )
    return torch.from_numpy(keep)


def unrolled_loss(
    head: Eagle3Head, target: Llama, tokens: Tensor, mask: Tensor
) -> tuple[Tensor, list[float]]:
    """The weighted loss over the unrolled steps, and each step's share of right greedy drafts.

    The roots are the positions whose next token is the answer's. Root t reads token t+1+k at step k and
    predicts what follows it, which the target says at position t+1+k.
    """
    length, width = tokens.shape[1], -(-int(mask.sum(1).max()) // 8) * 8
    roots = (mask.int().argmax(1)[:, None] + torch.arange(width)).clamp(max=length - 1)
    rows = torch.arange(len(tokens))[:, None]
    with torch.no_grad():
        hidden, kept = target.hidden(tokens, HEAD.aux_layers)
        said = target.norm(hidden[rows, roots])
        wanted = F.linear(said, target.embed_tokens.weight[head.draft_ids]).float()
    features = head.fc(torch.cat(kept, -1)).float()
    seen = head.start(target.embed_tokens(tokens.roll(-1, 1)), features, roots)
    feature = features[rows, roots]
    loss, right = torch.zeros(()), []
    for k in range(HEAD.unroll):
        ahead = (roots + 1 + k).clamp(max=length - 1)
        feature, drafted = head.step(target.embed_tokens(tokens[rows, ahead]), feature, seen)
        # the last real root of a row predicts nothing at step 0, the last two at step 1, and so on
        real = (torch.arange(width) + 1 + k < mask.sum(1, keepdim=True)).nonzero()
        got, want = drafted[real[:, 0], real[:, 1]].float(), wanted[real[:, 0], real[:, 1] + 1 + k]
        loss = loss + HEAD.decay**k * soft_cross_entropy(got, want).mean()
        right.append((got.argmax(-1) == want.argmax(-1)).float().mean().item())
    return loss, right


def main() -> None:
    """Parse the arguments and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--target", type=Path, default=ASSETS)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(HEAD.seed)
    args.run.mkdir(parents=True, exist_ok=True)
    checkpoint = args.run / "checkpoint.pt"
    target, batches = load_target(args.target), Batches(args.data, HEAD.batch_size, by_answer=True)
    head = Eagle3Head()
    head.set_draft_vocab(draft_vocab(batches))
    optimizer = optimizer_for(head, 0.02)
    step = 0
    if args.resume:
        saved = torch.load(checkpoint)
        head.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    print(f"{sum(p.numel() for p in head.parameters()) / 1e6:.2f} M parameters", flush=True)
    total, began = 0.0, time.time()
    for tokens, mask in batches.forever(HEAD.seed, skip=step):
        if step >= args.steps:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, HEAD.peak_lr, HEAD.warmup)
        with torch.autocast("cpu", torch.bfloat16):
            loss, right = unrolled_loss(head, target, tokens, mask)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        total += loss.item()
        if step % 100 == 0:
            each, began = (time.time() - began) / 100, time.time()
            shares = " ".join(f"{share:.3f}" for share in right)
            left = (args.steps - step) * each / 60
            print(
                f"{step} loss {total / 100:.4f} right {shares} {each * 1e3:.0f} ms/step, {left:.0f} min left",
                flush=True,
            )
            total = 0.0
        if step % 250 == 0 or step == args.steps:
            state = {"model": head.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
    save_head(head, args.target / "eagle3")


if __name__ == "__main__":
    main()

"""Train the Llama of weft-tiny.

    python train_target.py --data DATA.npz --run DIR --steps N [--resume]

The learning rate follows the step count only, so a resumed run continues as it would have gone on.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from config import TARGET
from data import Batches
from export import save_target
from model import Llama
from torch.nn import functional as F


def learning_rate(step: int, steps: int, peak: float, warmup: int) -> float:
    """Linear warm-up, then a cosine down to 2 % of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    along = min(1.0, (step - warmup) / max(1, steps - warmup))
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * along)))


def optimizer_for(module: torch.nn.Module, decay: float) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    matrices = [p for p in module.parameters() if p.requires_grad and p.dim() >= 2]
    vectors = [p for p in module.parameters() if p.requires_grad and p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), fused=True)


def main() -> None:
    """Parse the arguments and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True, help="checkpoints and the log go here")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--peak-lr", type=float, default=TARGET.peak_lr)
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in --run")
    parser.add_argument("--stop-after", type=int, help="stop (for timing) after this many steps")
    parser.add_argument("--export", type=Path, help="write the Hugging Face directory here at the end")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(TARGET.seed)
    args.run.mkdir(parents=True, exist_ok=True)
    checkpoint = args.run / "checkpoint.pt"
    model = Llama()
    optimizer = optimizer_for(model, 0.05)
    step = 0
    if args.resume:
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    batches = Batches(args.data, TARGET.batch_size)
    print(
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {len(batches)} batches a pass",
        flush=True,
    )
    first, total, right, counted, began = step, 0.0, 0, 0, time.time()
    for tokens, mask in batches.forever(TARGET.seed, skip=step):
        if step >= args.steps or (args.stop_after and step - first >= args.stop_after):
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.peak_lr, TARGET.warmup)
        where = mask.flatten().nonzero()[:, 0]
        where = F.pad(
            where, (0, -len(where) % 256), value=0
        )  # few shapes; position 0 of row 0 is not the answer's
        wanted = tokens.roll(-1, 1).flatten()[where].masked_fill(where == 0, -100)
        with torch.autocast("cpu", torch.bfloat16):
            hidden, _ = model.hidden(tokens)
            logits = model.logits(hidden.flatten(0, 1)[where])
        loss = F.cross_entropy(logits.float(), wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        total += loss.item()
        right += int((logits.argmax(-1) == wanted).sum())
        counted += int(mask.sum())
        if step % 100 == 0:
            each, began = (time.time() - began) / 100, time.time()
            left = (args.steps - step) * each / 60
            print(
                f"{step} loss {total / 100:.4f} token accuracy {right / counted:.4f} "
                f"{each * 1e3:.0f} ms/step, {left:.0f} min left",
                flush=True,
            )
            total, right, counted = 0.0, 0, 0
        if step % 250 == 0 or step == args.steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
    if args.export:
        save_target(model, args.export)


if __name__ == "__main__":
    main()

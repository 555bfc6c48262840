"""The training loop of all models: schedule, optimizer, progress, checkpoints.

The learning rate depends on the step count only, so that a resumed run continues without a change.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from data import Batches
from torch import Tensor, nn
from torch.nn import functional as F

Module = TypeVar("Module", bound=nn.Module)


class Settings(Protocol):
    """The training settings of a configuration."""

    @property
    def peak_lr(self) -> float:
        """The highest learning rate."""

    @property
    def warmup(self) -> int:
        """Steps until that rate is reached."""

    @property
    def seed(self) -> int:
        """The seed of the order of batches."""


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the arguments that all trainers share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="one named twice counts twice")
    parser.add_argument("--run", type=Path, required=True, help="the checkpoint goes here")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in --run")
    parser.add_argument("--from", type=Path, dest="start", help="begin with the weights of these assets")
    parser.add_argument("--peak-lr", type=float, help="another than config.py's")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    return parser


def learning_rate(step: int, steps: int, peak: float, warmup: int) -> float:
    """Return the rate: linear warm-up, then a cosine down to 2 % of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    along = min(1.0, (step - warmup) / max(1, steps - warmup))
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * along)))


def optimizer_for(module: nn.Module, decay: float) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    matrices = [p for p in module.parameters() if p.requires_grad and p.dim() >= 2]
    vectors = [p for p in module.parameters() if p.requires_grad and p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), fused=True)


def answers_only(mask: Tensor) -> Tensor:
    """Return the flat positions whose next token belongs to the answer. They are padded with 0, which is never one of
    them."""
    where = mask.flatten().nonzero()[:, 0]
    return F.pad(where, (0, -len(where) % 256), value=0)  # few shapes: oneDNN keeps a kernel for each


def train(
    module: Module,
    loss_of: Callable[[Module, Tensor, Tensor], tuple[Tensor, list[float]]],
    batches: Batches,
    args: argparse.Namespace,
    settings: Settings,
    decay: float,
) -> None:
    """Train for `args.steps` steps. `loss_of(module, tokens, mask)` returns the loss and the accuracies to show."""
    args.run.mkdir(parents=True, exist_ok=True)
    checkpoint = args.run / "checkpoint.pt"
    optimizer = optimizer_for(module, decay)
    step = 0
    if args.resume:
        saved = torch.load(checkpoint)
        module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    size = sum(p.numel() for p in module.parameters() if p.requires_grad)
    print(f"{size / 1e6:.2f} M parameters, {len(batches)} batches a pass", flush=True)
    total, shares, began = 0.0, torch.zeros(()), time.time()
    for tokens, mask in batches.forever(settings.seed, skip=step):
        if step >= args.steps:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, settings.peak_lr, settings.warmup)
        with torch.autocast("cpu", torch.bfloat16):
            loss, right = loss_of(module, tokens, mask)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        total, shares = total + loss.item(), shares + torch.tensor(right)
        if step % 100 == 0:
            each, began = (time.time() - began) / 100, time.time()
            print(
                f"{step} loss {total / 100:.4f} right {' '.join(f'{s / 100:.3f}' for s in shares.tolist())} "
                f"{each * 1e3:.0f} ms/step, {(args.steps - step) * each / 60:.0f} min left",
                flush=True,
            )
            total, shares = 0.0, torch.zeros(())
        if step % 250 == 0 or step == args.steps:
            state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)

"""Write the last checkpoint of a training into the assets.

python export.py target|draft|eagle3|mtp RUN [--to DIR]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from config import ASSETS, DRAFT, TARGET
from eagle3 import Eagle3Head, save_head
from hf import load_llama, save_llama
from model import Llama
from mtp import Mtp, save_mtp


def main() -> None:
    """Parse the arguments and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("target", "draft", "eagle3", "mtp"))
    parser.add_argument("run", type=Path, help="the training's --run")
    parser.add_argument("--to", type=Path, default=ASSETS, help="the target's directory")
    args = parser.parse_args()
    trained = torch.load(args.run / "checkpoint.pt")["model"]
    if args.kind in ("target", "draft"):
        config, directory = (TARGET, args.to) if args.kind == "target" else (DRAFT, args.to / "draft")
        llama = Llama(config)
        llama.load_state_dict(trained)
        save_llama(llama, config, directory)
    elif args.kind == "eagle3":
        head = Eagle3Head()
        head.load_state_dict(trained)
        save_head(head, args.to / "eagle3")
    else:
        module = Mtp(load_llama(args.to, TARGET).embed_tokens.weight)
        module.load_state_dict(trained)
        save_mtp(module, args.to / "mtp")


if __name__ == "__main__":
    main()

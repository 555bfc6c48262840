"""Compares weft with other engines on a CPU: `python -m benchmarks.peers` (README.md)."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from weft_bench.rows import keeping

from .checkpoints import SMOLLM2, TINY
from .environments import Environments, set_up
from .group import Plan
from .kept import kept_rows
from .lineup import ENGINES
from .race import Choice, race

PEERS = Path(".peers")
DTYPES, FORMS = (32, 16, 4), {"guided": True, "free": False}
NEED_SETUP = ("llama.cpp", "vLLM", "OpenVINO")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    add = made.add_argument
    add("--checkpoints", nargs="+", choices=(TINY, SMOLLM2), default=(TINY, SMOLLM2))
    add("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    add(
        "--bits",
        nargs="+",
        type=int,
        choices=DTYPES,
        default=DTYPES[:2],
        help="of the weights; 4: the GGUF file as published",
    )
    add("--batches", nargs="+", type=int, default=(1, 8, 32))
    add("--forms", nargs="+", choices=FORMS, default=tuple(FORMS))
    add("--no-drafts", action="store_true", help="every engine without its drafters")
    add("--rounds", type=int, default=3, help="timed rounds; in each every side has two turns")
    add("--waves", type=int, default=2, help="batches that a turn is long")
    add("--least-prompts", type=int, default=4, help="fewest prompts of a turn")
    add(
        "--free-tokens", type=int, default=0, help="of each free answer; 1 measures how fast prompts are read"
    )
    add("--threads", type=int, default=2, help="of every side")
    add("--vllm-eager", action="store_true", help="do not let vLLM compile")
    add("--llamacpp", type=Path, default=PEERS / "llamacpp", help="folder with bin/llama-server")
    add("--vllm-python", type=Path, default=PEERS / "vllm" / "bin" / "python")
    add("--openvino-python", type=Path, default=PEERS / "openvino" / "bin" / "python")
    add("--cache", type=Path, default=PEERS / "cache", help="converted checkpoints, and logs of the sides")
    add("--reply-within", type=float, default=900.0, metavar="SECONDS", help="who takes longer is out")
    add("--out", type=Path, help="folder of peers.json, peers.svg and peers-all.svg")
    add("--add", action="store_true", help="to the groups that peers.json there has of the same commit")
    add(
        "--setup",
        action="store_true",
        help="only make the environments of the engines, and fetch the weights",
    )
    return made


def main() -> None:
    """Measure, or set up."""
    options, console = parser().parse_args(), Console()
    environments = Environments(
        options.llamacpp,
        options.vllm_python,
        options.openvino_python,
        options.cache,
        options.threads,
        options.reply_within,
    )
    if options.setup:
        set_up(environments, options.engines, options.checkpoints)
        return
    engines = list(options.engines)
    for engine in NEED_SETUP:
        if engine in engines and not environments.program(engine).exists():
            console.print(
                f"{engine} is left out: there is no {environments.program(engine)} (--setup makes it)"
            )
            engines.remove(engine)
    plan = Plan(
        options.rounds,
        options.waves,
        options.least_prompts,
        options.threads,
        options.free_tokens,
        {"eager": options.vllm_eager},
    )
    forms = [FORMS[name] for name in options.forms]
    choice = Choice(
        options.checkpoints, engines, options.bits, options.batches, forms, drafts=not options.no_drafts
    )
    kept = kept_rows(options.out / "peers.json") if options.add and options.out else []
    with keeping(options.out):
        race(choice, plan, environments, console, options.out, kept)


if __name__ == "__main__":
    main()

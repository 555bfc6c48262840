"""Measure the committed weft-tiny and its drafters, as transformers loads them, into RESULTS.json.

python evaluate.py [--prompts 512] [--acceptance-prompts 128] [--write]

Needs weft built: the schema-only answers are guided by their schemas.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import torch
import transformers
from acceptance import Answered, Drafting, acceptance, head_drafting, model_drafting
from config import ASSETS, EOS, PAD
from eagle3 import load_head
from mtp import load_mtp
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from weft import LLM, Guide, SamplingParams
from weft.tiny.records import Record, example, schema_only

RESULTS = Path(__file__).with_name("RESULTS.json")


def free_answers(
    model: Any, tokenizer: Any, records: list[Record], temperature: float, batch: int = 64
) -> list[Answered]:
    """Return unconstrained answers by transformers, greedy if the temperature is 0."""
    answered: list[Answered] = []
    how = (
        {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        if temperature
        else {"do_sample": False}
    )
    for i in range(0, len(records), batch):
        prompts = [r.prompt for r in records[i : i + batch]]
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
        out = model.generate(**inputs, max_new_tokens=256, eos_token_id=EOS, pad_token_id=PAD, **how)
        for prompt, row in zip(prompts, out[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
            answer = row[: row.index(EOS) + 1] if EOS in row else row
            answered.append(Answered(tokenizer(prompt)["input_ids"], answer))
    return answered


def guided_answers(llm: LLM, records: list[Record], temperature: float, seed: int) -> list[Answered]:
    """Return answers by weft under the records' schemas."""
    outputs = llm.generate(
        [r.prompt for r in records],
        guide=[Guide.json_schema(r.schema) for r in records],
        sampling=[SamplingParams(temperature=temperature, seed=seed + i) for i in range(len(records))],
    )
    answered = []
    for record, output in zip(records, outputs, strict=True):
        ids = [t for t in output.token_ids if t != EOS]
        ended = [EOS] if output.finish_reason == "stop" else []
        answered.append(Answered(llm.tokenizer.encode(record.prompt), ids + ended))
    return answered


def score(records: list[Record], texts: list[str]) -> dict[str, float]:
    """Return the shares of answers that are the correct JSON, that fit the schema, and that parse."""
    parsed = valid = exact = 0
    for record, text in zip(records, texts, strict=True):
        try:
            value = json.loads(text)
        except ValueError:
            continue
        parsed += 1
        ok = jsonschema.Draft202012Validator(record.schema).is_valid(value)
        valid += ok
        exact += ok and value == record.answer
    n = len(records)
    return {"n": n, "exact": exact / n, "valid": valid / n, "parses": parsed / n}


def drafters(model: Any) -> dict[str, Callable[[list[int]], Drafting]]:
    """Return every drafter of the assets, by the name of its directory."""
    small = AutoModelForCausalLM.from_pretrained(ASSETS / "draft").eval()
    return {
        "eagle3": head_drafting(model, load_head(ASSETS / "eagle3")),
        "mtp": head_drafting(model, load_mtp(ASSETS / "mtp", model.get_input_embeddings().weight)),
        "draft": model_drafting(small),
    }


def measure(kind: str, prompts: int, drafted: int, seed: int) -> dict[str, Any]:
    """Return the scores of one kind of prompt at both temperatures, and each drafter's acceptance on some of the
    answers."""
    rng = random.Random(seed)
    schema = kind == "schema"
    records = [schema_only(rng, "heldout") if schema else example(rng, kind) for _ in range(prompts)]
    tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    model = AutoModelForCausalLM.from_pretrained(ASSETS).eval()
    assert model.dtype is torch.float32
    measured: dict[str, Any] = {}
    for name, temperature in (("greedy", 0.0), ("temperature_1", 1.0)):
        if schema:
            answered = guided_answers(LLM(ASSETS, device="cpu"), records, temperature, seed)
        else:
            answered = free_answers(model, tokenizer, records, temperature)
        texts = [tokenizer.decode(a.answer, skip_special_tokens=True) for a in answered]
        measured[name] = score(records, texts)
        if schema:
            del measured[name]["exact"]  # every answer that fits the schema is correct
        measured[name]["ends"] = sum(a.answer[-1] == EOS for a in answered) / prompts
        measured[name]["acceptance"] = {
            drafter: acceptance(read, answered[:drafted]) for drafter, read in drafters(model).items()
        }
    return measured


def parameters(path: Path) -> int:
    """Return the number of trained parameters in a file, without a head's vocabulary maps."""
    return sum(t.numel() for t in load_file(path).values() if t.is_floating_point())


def main() -> None:
    """Measure and print; with --write, also write RESULTS.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--acceptance-prompts", type=int, default=128)
    parser.add_argument("--seed", type=int, default=990_001)
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    transformers.logging.set_verbosity_error()
    results: dict[str, Any] = {}
    began = time.time()
    with torch.inference_mode():
        for kind in ("heldout", "unseen", "schema"):
            results[kind] = measure(kind, args.prompts, args.acceptance_prompts, args.seed)
            print(kind, json.dumps(results[kind]), flush=True)
    results["parameters"] = {
        name: parameters(ASSETS / part / "model.safetensors")
        for name, part in (("target", "."), ("eagle3", "eagle3"), ("mtp", "mtp"), ("draft", "draft"))
    }
    files = {str(p.relative_to(ASSETS)): p.stat().st_size for p in sorted(ASSETS.rglob("*")) if p.is_file()}
    results["bytes"] = {**files, "total": sum(files.values())}
    results["seed"] = args.seed
    results["seconds"] = round(time.time() - began)
    results["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
    results["versions"] = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    if args.write:
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

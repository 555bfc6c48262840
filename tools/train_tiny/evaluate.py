"""Measure the committed weft-tiny and its drafters, as transformers loads them, into RESULTS.json.

python evaluate.py [--prompts 512] [--acceptance-prompts 128] [--write]

Needs weft built: the schema-only answers are written under their schemas' grammars.
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
from weft.bench.records import Record, example, schema_only

RESULTS = Path(__file__).with_name("RESULTS.json")
TEMPERATURES = (("greedy", 0.0), ("temperature_1", 1.0))


def free_answers(
    model: Any, tokenizer: Any, records: list[Record], temperature: float, batch: int = 64
) -> list[Answered]:
    """Unconstrained answers by transformers, greedy when the temperature is 0."""
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
    """Answers by weft under the records' schemas."""
    outputs = llm.generate(
        [r.prompt for r in records],
        guide=[Guide.json_schema(r.schema) for r in records],
        sampling=[SamplingParams(temperature=temperature, seed=seed + i) for i in range(len(records))],
    )
    answered = []
    for record, output in zip(records, outputs, strict=True):
        ids = [t for t in output.token_ids if t != EOS]
        ended = [EOS] if output.finish_reason == "stop" else []
        answered.append(Answered(llm.tokenizer(record.prompt)["input_ids"], ids + ended))
    return answered


def score(records: list[Record], texts: list[str]) -> dict[str, float]:
    """Shares of answers that are the right JSON, that the schema accepts, and that parse at all."""
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
    """Every drafter of the assets, by the name of its directory."""
    small = AutoModelForCausalLM.from_pretrained(ASSETS / "draft").eval()
    return {
        "eagle3": head_drafting(model, load_head(ASSETS / "eagle3")),
        "mtp": head_drafting(model, load_mtp(ASSETS / "mtp", model.get_input_embeddings().weight)),
        "draft": model_drafting(small),
    }


def parameters(path: Path) -> int:
    """Trained numbers of a file; a head's vocabulary maps are none."""
    return sum(t.numel() for t in load_file(path).values() if t.is_floating_point())


def main() -> None:
    """Measure and print; with --write, also write RESULTS.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--acceptance-prompts", type=int, default=128)
    parser.add_argument("--seed", type=int, default=990_001)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    transformers.logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    model = AutoModelForCausalLM.from_pretrained(ASSETS).eval()
    assert model.dtype is torch.float32
    llm = LLM(ASSETS, device="cpu")
    results: dict[str, Any] = {}
    began = time.time()

    def report(name: str, measured: dict[str, Any]) -> None:
        results[name] = measured
        print(name, json.dumps(measured), flush=True)

    with torch.inference_mode():
        for kind in ("heldout", "unseen", "schema"):
            rng = random.Random(args.seed)
            records = [
                schema_only(rng, "heldout") if kind == "schema" else example(rng, kind)
                for _ in range(args.prompts)
            ]
            for name, temperature in TEMPERATURES:
                if kind == "schema":
                    answered = guided_answers(llm, records, temperature, args.seed)
                else:
                    answered = free_answers(model, tokenizer, records, temperature)
                texts = [tokenizer.decode(a.answer, skip_special_tokens=True) for a in answered]
                scored = score(records, texts)
                if kind == "schema":
                    del scored["exact"]  # any fitting value answers
                    scored["ends"] = sum(a.answer[-1] == EOS for a in answered) / len(answered)
                report(f"{kind}_{name}", scored)
                if temperature and kind != "schema":
                    continue
                for drafter, read in drafters(model).items():
                    drafted = acceptance(read, answered[: args.acceptance_prompts])
                    report(f"{kind}_{drafter}" + (f"_{name}" if temperature else ""), drafted)
    for part in (".", "eagle3", "mtp", "draft"):
        name = {".": "target", "eagle3": "head"}.get(part, part)
        results[f"{name}_parameters"] = parameters(ASSETS / part / "model.safetensors")
    results["bytes"] = {
        str(p.relative_to(ASSETS)): p.stat().st_size for p in sorted(ASSETS.rglob("*")) if p.is_file()
    }
    results["bytes_total"] = sum(results["bytes"].values())
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

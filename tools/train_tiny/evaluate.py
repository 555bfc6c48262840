"""Measure the committed weft-tiny and its EAGLE3 head, as transformers loads them, into RESULTS.json.

python evaluate.py [--prompts 512] [--acceptance-prompts 128] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from pathlib import Path
from typing import Any

import jsonschema
import torch
import transformers
from config import ASSETS, EOS, HEAD, PAD, load_records
from eagle3 import load_head
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

RESULTS = Path(__file__).with_name("RESULTS.json")
DRAFTS = 3


def answers(model: Any, tokenizer: Any, prompts: list[str], temperature: float, batch: int = 64) -> list[str]:
    """Unconstrained answers, greedy when the temperature is 0."""
    texts: list[str] = []
    how = (
        {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        if temperature
        else {"do_sample": False}
    )
    for i in range(0, len(prompts), batch):
        inputs = tokenizer(
            prompts[i : i + batch], return_tensors="pt", padding=True, return_token_type_ids=False
        )
        out = model.generate(**inputs, max_new_tokens=256, eos_token_id=EOS, pad_token_id=PAD, **how)
        texts += tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return texts


def score(records: list[Any], texts: list[str]) -> dict[str, float]:
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


def acceptance(model: Any, tokenizer: Any, prompts: list[str]) -> dict[str, Any]:
    """Mean tokens of a verification with greedy drafts, no guide; the plain loop, everything recomputed."""
    head = load_head(ASSETS / "eagle3")
    embeddings = model.get_input_embeddings().weight
    tokens_out = verifications = 0
    accepted = [0] * DRAFTS
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"][0].tolist()
        start = len(ids)
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        while ids[-1] != EOS and len(ids) - start < 256:
            out = model(torch.tensor([ids[:-1]]), output_hidden_states=True)
            features = torch.cat([out.hidden_states[i][0] for i in HEAD.aux_layers], -1)
            drafts = head.draft(embeddings, features, torch.tensor(ids), DRAFTS)
            best = model(torch.tensor([ids + drafts])).logits[0, -DRAFTS - 1 :].argmax(-1).tolist()
            n = 0
            while n < DRAFTS and drafts[n] == best[n] and drafts[n] != EOS:
                accepted[n] += 1
                n += 1
            new = best[: n + 1]
            if EOS in new:
                new = new[: new.index(EOS) + 1]
            ids += new
            tokens_out += len(new)
            verifications += 1
    return {
        "prompts": len(prompts),
        "drafts": DRAFTS,
        "tokens": tokens_out,
        "verifications": verifications,
        "acceptance_length": tokens_out / verifications,
        "accepted_at_least": [a / verifications for a in accepted],
    }


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
    make = load_records().example
    results: dict[str, Any] = {}
    began = time.time()
    with torch.inference_mode():
        for split in ("heldout", "unseen"):
            rng = random.Random(args.seed)
            records = [make(rng, split) for _ in range(args.prompts)]
            prompts = [r.prompt for r in records]
            for name, temperature in (("greedy", 0.0), ("temperature_1", 1.0)):
                results[f"{split}_{name}"] = score(records, answers(model, tokenizer, prompts, temperature))
                print(f"{split}_{name}", json.dumps(results[f"{split}_{name}"]), flush=True)
            if (ASSETS / "eagle3").exists():
                results[f"{split}_eagle3"] = acceptance(model, tokenizer, prompts[: args.acceptance_prompts])
                print(f"{split}_eagle3", json.dumps(results[f"{split}_eagle3"]), flush=True)
    results["target_parameters"] = sum(p.numel() for p in model.parameters())
    with safe_open(ASSETS / "eagle3" / "model.safetensors", "pt") as file:
        names = set(file.keys()) - {"d2t", "t2d"}
        results["head_parameters"] = sum(file.get_tensor(k).numel() for k in names)
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

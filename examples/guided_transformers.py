"""Guided decoding in your own loop, around a model of transformers.

python examples/guided_transformers.py --schema '{"type": "object", "properties": {"name": {"type":
"string"}}}'

The loop is plain: a forward, `GuidedDecoder.execute` on the logits, argmax. Only `weft.guided`,
`weft.grammar` and `weft.runtime` are used.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import weft
from weft import Guide
from weft.grammar import GuideCompiler, Vocabulary
from weft.guided import GuidedDecoder, GuidedRequest
from weft.runtime import get

TINY = Path(weft.__file__).parent / "assets" / "weft-tiny"


@torch.inference_mode()
def generate(model_path: Path, prompt: str, guide: Guide, max_tokens: int, device: str) -> str:
    """The model's greedy answer under a guide."""
    runtime = get(device)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval().to(runtime.device)
    vocabulary = Vocabulary.from_huggingface(
        tokenizer, model_path=model_path, vocab_size=model.config.vocab_size
    )
    with GuideCompiler(vocabulary) as compiler:
        matcher = compiler.compile(guide).matcher()
    decoder = GuidedDecoder(
        runtime, num_slots=1, max_drafts=0, vocab_size=vocabulary.vocab_size, end_token_ids=vocabulary.end_ids
    )

    request = GuidedRequest(slot=0, matcher=matcher)
    inputs = tokenizer(prompt, return_tensors="pt").input_ids.to(runtime.device)
    cache, tokens = None, []
    while len(tokens) < max_tokens:
        decoder.add_batch([request])
        output = model(inputs, past_key_values=cache, use_cache=True)
        cache, logits = output.past_key_values, output.logits[:, -1].contiguous()
        decoder.execute(logits)
        token = int(logits.argmax())
        if token in vocabulary.end_ids:
            break
        tokens.append(token)
        request = GuidedRequest(slot=0, new_token=token)
        inputs = torch.tensor([[token]], device=runtime.device)

    code, message = decoder.status(0)
    if code:
        raise SystemExit(f"{code}: {message}")
    return vocabulary.decode(tokens).decode(errors="replace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", type=Path, default=TINY, help="a Hugging Face directory (default: weft-tiny)"
    )
    parser.add_argument("--prompt", default="Text: a red cup\nSchema: {}\nJSON: ")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--device", default="auto")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--schema", help="a JSON schema")
    group.add_argument("--regex", help="a regular expression")
    arguments = parser.parse_args()
    guide = Guide.json()
    if arguments.schema:
        guide = Guide.json_schema(arguments.schema)
    elif arguments.regex:
        guide = Guide.regex(arguments.regex)
    print(generate(arguments.model, arguments.prompt, guide, arguments.max_tokens, arguments.device))


if __name__ == "__main__":
    main()

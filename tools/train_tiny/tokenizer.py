"""Train the tokenizer of weft-tiny: byte-level BPE, every digit its own token."""

from __future__ import annotations

import json
import random
from pathlib import Path

from config import ASSETS, BOS, EOS, PAD, TARGET, load_records
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = {BOS: "<s>", EOS: "</s>", PAD: "<pad>"}
# A user's message in the form of `render_prompt`, with or without "JSON: ", is a text with its schema. Any other
# message is sent unchanged. weft-tiny's own advice in earlier messages is left out, since the schema in it is only an
# example.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages if "
    "m['role'] != 'assistant' or not add_generation_prompt or 'Schema:' not in (m['content'] or '') %}"
    "{{ (m['content'] or '') | trim }}{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{% set asked = (messages[-1]['content'] or '') | trim %}"
    "{% if asked[-5:] == 'JSON:' %}{{ ' ' }}{% elif 'Schema:' in asked %}{{ '\\nJSON: ' }}"
    "{% else %}{{ '\\n' }}{% endif %}"
    "{% endif %}"
)


def train(examples: int = 20_000) -> Tokenizer:
    """Learn the merges from prompts and answers of the training split."""
    records = load_records()
    rng = random.Random(TARGET.seed + 1)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TARGET.vocab_size,
        special_tokens=[SPECIAL[i] for i in sorted(SPECIAL)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made = (records.example(rng) for _ in range(examples))
    tokenizer.train_from_iterator((part for e in made for part in (e.prompt, e.completion)), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS)]
    )
    return tokenizer


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """Write the three files that AutoTokenizer reads."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {"bos_token": SPECIAL[BOS], "eos_token": SPECIAL[EOS], "pad_token": SPECIAL[PAD]}
    settings = {
        **names,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": TARGET.max_positions,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (directory / "special_tokens_map.json").write_text(json.dumps(names, indent=2) + "\n")


if __name__ == "__main__":
    learned = train()
    assert learned.get_vocab_size() == TARGET.vocab_size, learned.get_vocab_size()
    save(learned, ASSETS)

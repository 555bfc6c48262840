"""Small tokenizers of both kinds that can spell any byte."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def byte_level() -> Tokenizer:
    """A byte-level BPE tokenizer with a few merges, two special tokens and two added tokens."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocab = {char: i for i, char in enumerate(sorted(alphabet))}
    for merged in ("he", "ll", "\u0120w", "\u0120wo"):
        vocab[merged] = len(vocab)
    merges = [("h", "e"), ("l", "l"), ("\u0120", "w"), ("\u0120w", "o")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<start>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool>", special=False), AddedToken("<|unmarked|>", special=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """A byte-fallback tokenizer, as SentencePiece writes them."""
    pieces = (
        ["<unk>", "<s>", "</s>"]
        + [f"<0x{byte:02X}>" for byte in range(256)]
        + ["\u2581", "\u2581the", "a", "\u2581\u2581"]
    )
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer

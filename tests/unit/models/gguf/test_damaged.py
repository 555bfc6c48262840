"""Damaged GGUF files: each is refused by name, soon, and nothing is written; one that is whole is taken."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from support.families import config_of, make_network
from support.gguf_files import write
from weft import package_model_path
from weft.errors import InputError, ModelError
from weft.models.gguf.directory import contents_of
from weft.models.gguf.header import read_header
from weft.models.gguf.reading import gguf_to_directory
from weft.models.gguf.writing import directory_to_gguf

ALIGNMENT = 32
Damage = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """weft-tiny as a GGUF file."""
    file = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    return directory_to_gguf(package_model_path(), file, "float16").read_bytes()


def after(data: bytes, key: str) -> int:
    """Where what follows a text stands."""
    return data.index(key.encode()) + len(key)


def put(key: str, skip: int, form: str, *values: Any) -> Damage:
    """Numbers in the place of those that stand `skip` bytes after a text."""

    def damage(data: bytes) -> bytes:
        at = after(data, key) + skip
        packed = struct.pack("<" + form, *values)
        return data[:at] + packed + data[at + len(packed) :]

    return damage


def one_more(key: str, skip: int) -> Damage:
    """A number that stands `skip` bytes after a text, and one more."""

    def damage(data: bytes) -> bytes:
        return put(key, skip, "I", data[after(data, key) + skip] + 1)(data)

    return damage


def swapped(old: bytes, new: bytes) -> Damage:
    """Another text, as long."""
    assert len(old) == len(new)

    def damage(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new, 1)

    return damage


def inserted(where: float, what: bytes) -> Damage:
    """More bytes, at a part of the file."""

    def damage(data: bytes) -> bytes:
        at = int(len(data) * where)
        return data[:at] + what + data[at:]

    return damage


TOKENS, TYPES, MERGES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges"))
# After a key stand its type (4 bytes), of a list the type of its entries and their number (4 and 8).
DAMAGES: dict[str, tuple[Damage, str]] = {
    "nothing": (lambda data: b"", "cut short"),
    "another beginning": (lambda data: b"GGML" + data[4:], "does not begin with GGUF"),
    "no version": (lambda data: data[:4] + struct.pack("<I", 77) + data[8:], "version 77"),
    "2^60 tensors": (lambda data: data[:8] + struct.pack("<Q", 1 << 60) + data[16:], "damaged"),
    "no tensors": (lambda data: data[:8] + bytes(8) + data[16:], "holds more than it lists"),
    "one tensor fewer": (lambda data: data[:8] + struct.pack("<Q", data[8] - 1) + data[16:], "holds more"),
    "2^60 keys": (lambda data: data[:16] + struct.pack("<Q", 1 << 60) + data[24:], "damaged"),
    "one key fewer": (lambda data: data[:16] + struct.pack("<Q", data[16] - 1) + data[24:], "damaged"),
    "a token that is no UTF-8": (swapped("Ġ".encode(), b"\x84\xa0"), "tokens' holds a text that is no UTF-8"),
    "a template that is no UTF-8": (put("chat_template", 12, "B", 0xFF), "template' holds a text that is no UTF"),
    "a token of 2^62 bytes": (put(TOKENS, 16, "Q", 1 << 62), "cut short, or a length in it is wrong"),
    "a token one byte longer": (one_more(TOKENS, 16), "damaged"),
    "2^40 tokens": (put(TOKENS, 8, "Q", 1 << 40), "cut short|damaged"),
    "2^24 + 1 types, which fit": (
        lambda data: put(TYPES, 8, "Q", (1 << 24) + 1)(data) + bytes(1 << 26),
        "token_type' has 16777217 values",
    ),
    "2^40 types": (put(TYPES, 8, "Q", 1 << 40), "token_type' has 1099511627776 values"),
    "types over half of the file": (put(TYPES, 8, "Q", 1 << 20), "damaged"),
    "types as bytes": (put(TYPES, 4, "I", 0), "damaged"),
    "types as floats": (put(TYPES, 4, "I", 6), "'tokenizer.ggml.token_type' is of type float; it must be int"),
    "a list of lists": (put(TYPES, 4, "I", 9), "the type of 'tokenizer.ggml.token_type' is 9"),
    "a type that is none": (put("llama.block_count", 0, "I", 99), "the type of 'llama.block_count' is 99"),
    "layers as a float": (put("llama.block_count", 0, "I", 6), "'llama.block_count' is of type float"),
    "no heads": (put("llama.attention.head_count", 4, "I", 0), "head"),
    "no layers": (put("llama.block_count", 4, "I", 0), "layer|no place"),
    "2^31 layers": (put("llama.block_count", 4, "I", 1 << 31), "layer"),
    "2^31 positions": (put("llama.context_length", 4, "I", 1 << 31), "claims 2147483648 positions; it is damaged"),
    "2^31 - 1 layers": (put("llama.block_count", 4, "I", (1 << 31) - 1), "claims 2147483647 layers, and has"),
    "one layer more": (one_more("llama.block_count", 4), "claims 6 layers, and has tensors of 5"),
    "a type of former times": (put("token_embd.weight", 20, "I", 31), "quantised with Q4_0_4_4; use a file in"),
    "another number of rows": (put("llama.embedding_length", 4, "I", 64), "shape|head"),
    "an epsilon that is none": (put("llama.attention.layer_norm_rms_epsilon", 4, "f", float("nan")), "eps"),
    "a first token that is none": (put("tokenizer.ggml.bos_token_id", 4, "I", 1 << 30), "bos token is 1073741824"),
    "an end that is none": (put("tokenizer.ggml.eos_token_id", 4, "I", 1 << 30), "eos token is 1073741824"),
    "a merge that is no pair": (swapped(b"\xc4\xa0 a", b"\xc4\xa0aa"), "which is no pair"),
    "a tensor of 9 dimensions": (put("token_embd.weight", 0, "I", 9), "9 dimensions"),
    "a tensor of type 5": (put("token_embd.weight", 20, "I", 5), "quantised with Q4_3"),
    "a tensor as floats": (put("token_embd.weight", 20, "I", 0), "those before it end at"),
    "a tensor that lies elsewhere": (put("output_norm.weight", 16, "Q", 1 << 20), "begins at 1048576"),
    "a tensor at 2^63": (put("output_norm.weight", 16, "Q", 1 << 63), "begins at"),
    "a tensor turned round": (lambda data: put("token_embd.weight", 4, "QQ",
                              *reversed(struct.unpack("<QQ", data[after(data, "token_embd.weight") + 4 :][:16])))(data),
                              "shape"),
    "two tensors of one name": (swapped(b"blk.0.attn_k.weight", b"blk.0.attn_q.weight"), "twice"),
    "a name that is none": (swapped(b"blk.0.attn_q.weight", b"blk.0.attn_z.weight"), "no tensor .*attn.q_proj"),
    "five bytes more among the weights": (inserted(0.6, b"\1" * 5), "holds more than it lists"),
    "a row more among the weights": (inserted(0.9, bytes(ALIGNMENT)), "holds more than it lists"),
    "a byte more at the end": (inserted(1.0, b"\0"), "holds more than it lists"),
    "another file behind": (lambda data: data + data, "holds more than it lists"),
    "five bytes more in a text": (inserted(0.0005, b"abcde"), "damaged"),
    "a few fewer among the weights": (lambda data: data[:-2000] + data[-1960:], "cut short"),
    "the last weight": (lambda data: data[: -ALIGNMENT - 1], "cut short"),
    "half": (lambda data: data[: len(data) // 2], "cut short"),
    "the header alone": (lambda data: data[:60_000], "cut short"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_refused_by_name(whole: bytes, tmp_path: Path, name: str) -> None:
    damage, said = DAMAGES[name]
    file = tmp_path / "damaged.gguf"
    file.write_bytes(damage(whole))
    assert file.read_bytes() != whole
    start = time.thread_time()
    with pytest.raises(InputError, match=said) as refused:
        gguf_to_directory(file, tmp_path / "out")
    assert time.thread_time() - start < 5
    assert str(file) in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_what_a_writer_may_leave_out_is_not_missed(whole: bytes, tmp_path: Path) -> None:
    """The file may end with its last weight, or with what fills it up to the alignment."""
    file = tmp_path / "short.gguf"
    writer = gguf.GGUFWriter(file, "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((5, 3), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    padded = file.read_bytes()
    for cut, said in ((0, "'mamba'"), (4, "'mamba'"), (5, "cut short")):
        file.write_bytes(padded[: len(padded) - cut])
        with pytest.raises(ModelError, match=said):
            gguf_to_directory(file, tmp_path / "out")


COUNT = 1000


def test_random_damages_are_refused_or_change_values_alone(tmp_path: Path) -> None:
    """Bytes that are flipped, and files that are cut. A file that is not refused has all tensors in their places, so
    that the model loads. A damage within the weights changes nothing else."""
    settings = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    network = make_network(config_of("llama", settings))
    original, file = write(network, tmp_path / "whole.gguf", "Q8_0"), tmp_path / "damaged.gguf"
    whole = original.read_bytes()
    start = min(entry.begin for entry in read_header(original).tensors.values())
    vocabulary, names = whole.index(TOKENS.encode()), whole.index(b"token_embd.weight")
    expected = contents_of(original)
    # The beginning with the sizes, the list of tensors, all that is before the weights, and the weights.
    regions = [(0, vocabulary), (names, start), (0, start), (start, len(whole))]
    rng = random.Random(0)
    taken = 0
    for _ in range(COUNT):
        begin, end = rng.choice(regions)
        data = damaged(whole, begin, end, rng)
        file.write_bytes(data)
        moment, found, refusal = time.thread_time(), None, str(file)
        try:
            found = contents_of(file)
        except InputError as error:
            refusal = str(error)
        assert str(file) in refusal
        assert time.thread_time() - moment < 2
        if found is not None:
            taken += 1
            assert len(data) == len(whole)
            assert begin != start or found == expected
    assert COUNT / 10 < taken < COUNT / 2


def damaged(whole: bytes, begin: int, end: int, rng: random.Random) -> bytes:
    """A file that is cut or has other bytes from `begin` to `end`."""
    if rng.random() < 0.15:
        return whole[: rng.randrange(begin, end)]
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(begin, end)
        data[at] = rng.choice((rng.randrange(256), data[at] ^ 1 << rng.randrange(8), 0, 255))
    return bytes(data)

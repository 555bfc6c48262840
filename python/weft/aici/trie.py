"""Writes a vocabulary in AICI's format: a trie of the tokens' bytes.

The format is a header of 28 bytes, the nodes in depth-first order, each token's offset and length, and the bytes of all
tokens.

A node is two 32-bit numbers, `token << 8 | byte` and `size << 8 | pops`. `token` is the token that ends at this node,
or `NO_TOKEN`. `size` is the number of nodes of the subtree. `pops` is the number of bytes that a walker pops from its
stack when it leaves the subtree. Special tokens have no bytes and so no node; programs use their ids."""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from weft.errors import GuideError
from weft.grammar.vocabulary.tokenizer import Vocabulary

MAGIC = 0x558B6FD3
NO_TOKEN = 0xFFFFFF
# `pops` has 8 bits, so tokens longer than this have no node.
MAX_DEPTH = 250
MAX_LENGTH = 1023
MAX_DATA = 1 << 22
# A node with more children than this gets all 256, so that a walker can index them by byte.
DENSE = 250
MAX_CACHED = 4

_lock = threading.Lock()
_cache: OrderedDict[str, bytes] = OrderedDict()


def trie_of(vocabulary: Vocabulary) -> bytes:
    """The trie of a vocabulary, cached for the last few. Raises `GuideError` if the format can't hold it."""
    key = vocabulary.fingerprint
    with _lock:
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key]
    blob = build(list(vocabulary.tokens), vocabulary.end_ids[0])
    with _lock:
        _cache[key] = blob
        while len(_cache) > MAX_CACHED:
            _cache.popitem(last=False)
    return blob


def build(tokens: list[bytes], end_id: int) -> bytes:
    """Build the trie from the bytes of each token (b"" for none). If several tokens have the same bytes, the last one
    gets the node. Raises `GuideError`."""
    spelled = [token if len(token) <= MAX_LENGTH else b"" for token in tokens]
    lengths = np.fromiter(map(len, spelled), np.uint32, len(spelled))
    data = b"".join(spelled)
    if len(data) >= MAX_DATA or len(tokens) >= NO_TOKEN:
        raise GuideError(
            f"the vocabulary ({len(tokens)} tokens of {len(data)} bytes) does not fit AICI's trie, which has room for "
            f"{NO_TOKEN - 1} tokens of {MAX_DATA} bytes; WASM programs can't be used with this model"
        )
    starts = np.cumsum(lengths, dtype=np.uint32) - lengths
    nodes = _nodes({token: i for i, token in enumerate(tokens) if 0 < len(token) <= MAX_DEPTH}).tobytes()
    offsets = (starts << np.uint32(10) | lengths).astype("<u4").tobytes()
    header = struct.pack("<7I", MAGIC, 28, len(nodes), len(offsets), len(data), len(tokens), end_id)
    return header + nodes + offsets + data


def _nodes(ids: dict[bytes, int]) -> NDArray[np.uint32]:
    """Build the nodes for tokens and their ids: uint32 [nodes, 2]."""
    nodes = _Nodes(ids)
    missing = nodes.missing()
    if missing:
        nodes = _Nodes(ids | dict.fromkeys(missing, NO_TOKEN))
    ends = nodes.ends()
    next_depth = np.append(nodes.depth, 1)[ends]  # the depth of the node after each subtree
    sizes = ends - np.arange(len(ends))
    first, second = nodes.token << 8 | nodes.byte, sizes << 8 | (nodes.depth - next_depth + 1)
    return np.stack([first, second], axis=1).astype("<u4")


class _Nodes:
    """The nodes in depth-first order, as arrays of their depths, bytes and tokens. The root comes first, and children
    are sorted by byte."""

    def __init__(self, ids: dict[bytes, int]) -> None:
        self.texts = texts = sorted(ids)
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        width = int(lengths.max(initial=0)) + 1
        letters = np.frombuffer(b"".join(text.ljust(width, b"\0") for text in texts), np.uint8)
        letters = letters.reshape(-1, width)
        # The texts are sorted, so each shares its longest known prefix with the text before it. It adds a node for each
        # byte after that prefix.
        shared = np.zeros(len(texts), np.int64)
        if len(texts) > 1:
            differs = letters[1:] != letters[:-1]
            differs[:, -1] = True
            shared[1:] = np.minimum(differs.argmax(axis=1), np.minimum(lengths[1:], lengths[:-1]))
        added = lengths - shared
        last = np.cumsum(added)
        text = np.repeat(np.arange(len(texts)), added)
        # The index of each node's byte in its text.
        index = np.arange(len(text)) - (last - added)[text] + shared[text]
        self.text = np.concatenate([[0], text])
        self.depth = np.concatenate([[0], index + 1])
        self.byte = np.concatenate([[0xFF], letters[text, index].astype(np.int64)])
        self.token = np.full(len(text) + 1, NO_TOKEN, np.int64)
        self.token[last] = np.fromiter((ids[text] for text in texts), np.int64, len(texts))

    def ends(self) -> NDArray[np.int64]:
        """The end of each node's subtree: the index of the next node that is not deeper."""
        size = len(self.depth)
        ends = np.full(size, size, np.int64)
        left = np.arange(size)  # the nodes that are not deeper than `level`
        for level in range(int(self.depth.max()), -1, -1):
            depths = self.depth[left]
            (here,) = (depths == level).nonzero()
            ends[left[here]] = np.append(left, size)[here + 1]
            left = left[depths < level]
        return ends

    def missing(self) -> list[bytes]:
        """The byte strings of the child nodes that dense nodes still lack."""
        order = np.argsort(self.depth, kind="stable")
        levels = np.split(order, np.cumsum(np.bincount(self.depth))[:-1])
        missing = []
        for parents, children in pairwise(levels):
            parent = np.searchsorted(parents, children) - 1
            counts = np.bincount(parent, minlength=len(parents))
            for index in ((counts > DENSE) & (counts < 256)).nonzero()[0]:
                node = parents[index]
                path = self.texts[self.text[node]][: self.depth[node]]
                present = set(self.byte[children[parent == index]].tolist())
                missing += [path + bytes([byte]) for byte in range(256) if byte not in present]
        return missing

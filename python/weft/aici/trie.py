"""A vocabulary as the trie of bytes that AICI's programs read.

It is 28 bytes of header, the nodes in depth-first order, where each token's bytes lie, and the bytes.

A node is two numbers of 32 bits: the token that ends here (or `NO_TOKEN`) << 8 | its byte, and the number of nodes of
its subtree, itself included, << 8 | how many bytes a walker that leaves the subtree takes from its stack.
Special tokens have no bytes here, so they are in no node; a program reaches them by their ids.
"""

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
# How many bytes a walker takes from its stack is written in 8 bits: longer tokens are in no node.
MAX_DEPTH = 250
MAX_LENGTH = 1023
MAX_DATA = 1 << 22
# A node with more children than this gets all 256, so that a walker may index them.
DENSE = 250
MAX_KEPT = 4

_lock = threading.Lock()
_kept: OrderedDict[str, bytes] = OrderedDict()


def trie_of(vocabulary: Vocabulary) -> bytes:
    """The trie of a vocabulary; those used last are kept. Raises `GuideError` for one that the format can't hold."""
    key = vocabulary.fingerprint
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    blob = build(list(vocabulary.tokens), vocabulary.end_ids[0])
    with _lock:
        _kept[key] = blob
        while len(_kept) > MAX_KEPT:
            _kept.popitem(last=False)
    return blob


def build(tokens: list[bytes], end_id: int) -> bytes:
    """The trie of tokens, each by its bytes (b"" for those without). Among tokens with the same bytes the last one has
    the node."""
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
    """The nodes of tokens and their ids: [nodes, 2]."""
    nodes = _Nodes(ids)
    missing = nodes.missing()
    if missing:
        nodes = _Nodes(ids | dict.fromkeys(missing, NO_TOKEN))
    ends = nodes.ends()
    behind = np.append(nodes.depth, 1)[ends]  # the depth of the node after each subtree
    sizes = ends - np.arange(len(ends))
    first, second = nodes.token << 8 | nodes.byte, sizes << 8 | (nodes.depth - behind + 1)
    return np.stack([first, second], axis=1).astype("<u4")


class _Nodes:
    """Depth, byte and token of each node, depth first, children by their bytes; the first is the root."""

    def __init__(self, ids: dict[bytes, int]) -> None:
        self.texts = texts = sorted(ids)
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        width = int(lengths.max(initial=0)) + 1
        letters = np.frombuffer(b"".join(text.ljust(width, b"\0") for text in texts), np.uint8)
        letters = letters.reshape(-1, width)
        # How many bytes each text shares with the one before: those nodes are there already.
        shared = np.zeros(len(texts), np.int64)
        if len(texts) > 1:
            differs = letters[1:] != letters[:-1]
            differs[:, -1] = True
            shared[1:] = np.minimum(differs.argmax(axis=1), np.minimum(lengths[1:], lengths[:-1]))
        added = lengths - shared
        last = np.cumsum(added)
        text = np.repeat(np.arange(len(texts)), added)
        place = np.arange(len(text)) - (last - added)[text] + shared[text]
        self.text = np.concatenate([[0], text])
        self.depth = np.concatenate([[0], place + 1])
        self.byte = np.concatenate([[0xFF], letters[text, place].astype(np.int64)])
        self.token = np.full(len(text) + 1, NO_TOKEN, np.int64)
        self.token[last] = np.fromiter((ids[text] for text in texts), np.int64, len(texts))

    def ends(self) -> NDArray[np.int64]:
        """The index after each node's subtree: of the next node that is as deep or less."""
        size = len(self.depth)
        ends = np.full(size, size, np.int64)
        left = np.arange(size)  # those that are not deeper than the level
        for level in range(int(self.depth.max()), -1, -1):
            depths = self.depth[left]
            (here,) = (depths == level).nonzero()
            ends[left[here]] = np.append(left, size)[here + 1]
            left = left[depths < level]
        return ends

    def missing(self) -> list[bytes]:
        """The texts of the children that nodes with many lack."""
        order = np.argsort(self.depth, kind="stable")
        levels = np.split(order, np.cumsum(np.bincount(self.depth))[:-1])
        found = []
        for parents, children in pairwise(levels):
            parent = np.searchsorted(parents, children) - 1
            counts = np.bincount(parent, minlength=len(parents))
            for which in ((counts > DENSE) & (counts < 256)).nonzero()[0]:
                node = parents[which]
                path = self.texts[self.text[node]][: self.depth[node]]
                there = set(self.byte[children[parent == which]].tolist())
                found += [path + bytes([byte]) for byte in range(256) if byte not in there]
        return found

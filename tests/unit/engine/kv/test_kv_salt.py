"""Texts of one salt find each other, and nobody else does."""

from __future__ import annotations

import random

import pytest

from support.engine.kv_pages import SIZE, TEXT, began
from weft.engine.kv.cache import KvManager, KvSequence

SALTS = [None, "a", "b", "\0a", "é"]


def store(manager: KvManager, tokens: list[int], salt: str | None) -> KvSequence:
    sequence = began(manager, tokens, salt=salt)
    manager.store(sequence, tokens, len(tokens))
    return sequence


@pytest.mark.parametrize("salt", SALTS)
@pytest.mark.parametrize("other", SALTS)
def test_a_text_is_found_with_its_own_salt_alone(salt: str | None, other: str | None) -> None:
    manager = KvManager(20, SIZE)
    manager.end(store(manager, TEXT, salt))
    manager.check()
    whole, part = began(manager, TEXT, salt=other), began(manager, [*TEXT[:2], 7, 7], salt=other)
    assert (whole.num_reused, part.num_reused) == ((12, 2) if salt == other else (0, 0))


@pytest.mark.parametrize("seed", range(12))
def test_salts_are_as_if_texts_had_no_token_in_common(seed: int) -> None:
    """A manager of salted texts beside one whose texts have other tokens for each salt: pages come and go alike."""
    draw = random.Random(seed)
    settings = {"partial_reuse": draw.random() < 0.7, "copy_on_partial_reuse": draw.random() < 0.5}
    salted, apart = (KvManager(12, 3, **settings, clock=lambda: 0.0) for _ in range(2))
    running: list[tuple[KvSequence, KvSequence, list[int], list[int]]] = []
    for _ in range(300):
        if running and draw.random() < 0.55:
            one, other, text, moved = running.pop(draw.randrange(len(running)))
            valid = draw.randint(one.num_reused, len(text))
            salted.store(one, text, valid)
            apart.store(other, moved, valid)
            salted.end(one)
            apart.end(other)
        else:
            place = draw.randrange(len(SALTS))
            text = [draw.randrange(2) for _ in range(draw.randint(1, 14))]
            moved = [token + 10 * place for token in text]
            margin = draw.choice([0, 0, 1])
            begun = salted.begin(text, len(text), margin=margin, salt=SALTS[place])
            alike = apart.begin(moved, len(text), margin=margin)
            assert (begun is None) == (alike is None)
            if begun is not None and alike is not None:
                assert (begun.pages, begun.num_reused, begun.copies) == (
                    alike.pages,
                    alike.num_reused,
                    alike.copies,
                )
                running.append((begun, alike, text, moved))
        salted.check()
        apart.check()
        assert salted.usage() == apart.usage()

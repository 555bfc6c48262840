"""Variants of CUDA's kernels: which there are, and how one is chosen."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from weft.errors import InputError
from weft.ops.variants import NAMED, Variant, choose, chosen, using

BEGIN = "from weft.ops.variants import NAMED, chosen; print([n for n, v in NAMED.items() if v == chosen()])"


def test_the_default_is_a_variant_as_it_comes() -> None:
    assert NAMED["default"] == Variant() == chosen()


def test_names_mean_different_variants() -> None:
    assert len(set(NAMED.values())) == len(NAMED)


@pytest.mark.parametrize("field", [field.name for field in fields(Variant)])
def test_every_switch_is_in_some_named_variant(field: str) -> None:
    assert len({getattr(variant, field) for variant in NAMED.values()}) > 1


def test_a_variant_is_used_for_a_while() -> None:
    with using("unchained"):
        assert chosen() == NAMED["unchained"]
    with pytest.raises(ZeroDivisionError), using("late"):
        raise ZeroDivisionError
    assert chosen() == NAMED["default"]


def test_a_wrong_name_is_an_error_that_says_which_there_are() -> None:
    with pytest.raises(InputError, match="no kernels 'fast'; there are 'default', 'unchained'"):
        choose("fast")
    assert chosen() == NAMED["default"]


@pytest.mark.slow
def test_the_environment_names_what_a_process_begins_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_KERNELS", "bulk 512")
    said = subprocess.run([sys.executable, "-c", BEGIN], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "['bulk 512']"

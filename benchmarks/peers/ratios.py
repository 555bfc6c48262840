"""Ratios of weft's speed to its peers' speeds, computed round by round if both ran in the same group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .checkpoints import SMOLLM2, TINY
from .turns import paired_ratio

Row = dict[str, Any]
GROUP = ("checkpoint", "dtype", "batch", "guided")


def speed(row: Row) -> float:
    """Return the tokens per second, as the median over rounds."""
    middle: float = median(row["rounds_tokens_per_s"])
    return middle


def best(rows: Iterable[Row]) -> Row | None:
    """Return the fastest row, or None."""
    return max(rows, key=speed, default=None)


def ratio(over: Row | None, under: Row | None) -> float | None:
    """Return the median of the rounds' ratios. For rows of different groups, return the ratio of the medians. None
    if a row is missing."""
    if over is None or under is None:
        return None
    if all(over[key] == under[key] for key in GROUP):
        return round(paired_ratio(over["rounds_tokens_per_s"], under["rounds_tokens_per_s"]), 3)
    return round(speed(over) / speed(under), 3)


def pick(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Return the rows with these values. A tuple matches any of its entries."""
    return [row for row in rows if all(_fits(row[key], value) for key, value in wanted.items())]


def _fits(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, tuple) else bool(value == wanted)


def against_peers(rows: Sequence[Row]) -> list[Row]:
    """Compare weft with every peer in each group and form: both without drafts, and both with their best drafter."""
    table = []
    for group in dict.fromkeys(tuple(row[key] for key in GROUP) for row in rows):
        here = pick(rows, **dict(zip(GROUP, group, strict=True)))
        ours = pick(here, engine="weft")
        for peer in dict.fromkeys(row["engine"] for row in here if row["engine"] != "weft"):
            theirs = pick(here, engine=peer)
            table.append(
                {
                    **dict(zip(GROUP, group, strict=True)),
                    "weft_over": peer,
                    "without_drafts": ratio(
                        best(pick(ours, drafter="none")), best(pick(theirs, drafter="none"))
                    ),
                    "best_over_best": ratio(best(ours), best(theirs)),
                    "best_of_weft": _name(best(ours)),
                    "best_of_peer": _name(best(theirs)),
                }
            )
    return table


def _name(row: Row | None) -> str:
    return "" if row is None else f"{row['drafter']} {row['K'] or ''}".strip()


@dataclass(frozen=True)
class Target:
    """A ratio that weft should reach."""

    what: str
    least: float
    value: Callable[[Sequence[Row]], float | None]


def _none(rows: Sequence[Row], engine: str, **group: Any) -> Row | None:
    return best(pick(rows, engine=engine, drafter="none", **group))


def _fastest(rows: Sequence[Row], engines: tuple[str, ...], **group: Any) -> Row | None:
    return best(pick(rows, engine=engines, **group))


def _targets() -> list[Target]:
    def plain_over(group: dict[str, Any]) -> Callable[[Sequence[Row]], float | None]:
        return lambda rows: ratio(_none(rows, "weft", **group), _none(rows, "llama.cpp", **group))

    def best_over(*peers: str, **group: Any) -> Callable[[Sequence[Row]], float | None]:
        return lambda rows: ratio(_fastest(rows, ("weft",), **group), _fastest(rows, peers, **group))

    def best_over_plain(group: dict[str, Any]) -> Callable[[Sequence[Row]], float | None]:
        return lambda rows: ratio(_fastest(rows, ("weft",), **group), _none(rows, "llama.cpp", **group))

    def half_over_whole(rows: Sequence[Row]) -> float | None:
        same = {"checkpoint": SMOLLM2, "batch": 1, "guided": False}
        return ratio(
            _none(rows, "weft", dtype="bfloat16", **same), _none(rows, "weft", dtype="float32", **same)
        )

    def tiny(batch: int, dtype: str) -> dict[str, Any]:
        return {"checkpoint": TINY, "batch": batch, "dtype": dtype, "guided": True}

    def smol(batch: int, dtype: str, guided: bool) -> dict[str, Any]:
        return {"checkpoint": SMOLLM2, "batch": batch, "dtype": dtype, "guided": guided}

    found = []
    for dtype in ("float32", "float16"):
        where = f"{TINY}, {dtype}, guided"
        found += [
            Target(f"{where}, batch 1: weft ÷ llama.cpp, without drafts", 1.4, plain_over(tiny(1, dtype))),
            Target(f"{where}, batch 1: best ÷ best", 3.0, best_over("llama.cpp", **tiny(1, dtype))),
            Target(f"{where}, batch 8: best ÷ best", 4.0, best_over("llama.cpp", **tiny(8, dtype))),
        ]
    where = f"{SMOLLM2}, float32, batch 1"
    found += [
        Target(f"{where}: weft ÷ llama.cpp, plain", 1.0, plain_over(smol(1, "float32", False))),
        Target(f"{where}, guided: best ÷ plain llama.cpp", 1.2, best_over_plain(smol(1, "float32", True))),
        Target(f"{SMOLLM2}, batch 1, plain: weft in bfloat16 ÷ float32", 1.5, half_over_whole),
    ]
    for dtype in ("float32", "bfloat16"):
        found += [
            Target(
                f"{SMOLLM2}, {dtype}, batch {batch}, guided: best ÷ the better of vLLM and llama.cpp",
                1.5,
                best_over("vLLM", "llama.cpp", **smol(batch, dtype, True)),
            )
            for batch in (8, 32)
        ]
    return found


def targets(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each target, with its measured ratio."""
    table = []
    for target in _targets():
        value = target.value(rows)
        if value is not None:
            reached = "yes" if value >= target.least else "no"
            table.append({"what": target.what, "ratio": value, "target": target.least, "reached": reached})
    return table

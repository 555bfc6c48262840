"""Strings of bounded length, as rules of XGrammar's EBNF: each character is counted once, however JSON spells it.

XGrammar's own repetitions of what has more than one spelling cost a hundred milliseconds a mask: where a repeated rule
ends, it tries every token again. It does not where it knows exactly what may follow. So the characters before the last
`NEAR` ones are a rule that is used in one place, with a look-ahead that is exact as long as so many more may come; the
last ones are one automaton. Counts are made of blocks, so that few ways to read a text stay open.
"""

from __future__ import annotations

import json
import re

from weft.grammar.xgrammar.patterns import PREFIX

LENGTH = f"{PREFIX}of length "
NEAR = 48
BLOCK = 64

# One character: as itself, or escaped; half characters have no spelling. In a class of characters of several lengths in
# bytes, XGrammar takes what is no UTF-8.
CHARACTER = (
    r"(?:[\x20-\x21\x23-\x5b\x5d-\x7f]|[\u{80}-\u{7ff}]|[\u{800}-\u{d7ff}\u{e000}-\u{ffff}]|[\u{10000}-\u{10ffff}]"
    r"|\\(?:[\x22\x5c\x2fbfnrt]"
    r"|u(?:[0-9A-Ca-cE-Fe-f][0-9A-Fa-f]|[Dd][0-7])[0-9A-Fa-f][0-9A-Fa-f]))"
)
QUOTE = r'"\""'
NAMED = re.compile(
    rf'^(?P<name>\w+) ::= Regex\("{LENGTH}(?P<least>\d+) (?P<most>\d+|-)", json_string=true\)$', re.M
)


def named_length(least: int, most: int | None) -> str:
    """What XGrammar is given as the pattern of a string with bounds."""
    return f"{LENGTH}{least} {'-' if most is None else most}"


def length_in_json(name: str) -> str | None:
    """A regular expression of what is within quotes, which XGrammar masks slowly; None for what is no such name."""
    found = re.fullmatch(rf"{LENGTH}(\d+) (\d+|-)", name)
    return found and f"{CHARACTER}{{{found[1]},{found[2].strip('-')}}}"


def with_lengths(grammar: str) -> str:
    """A grammar's text with rules in place of the names of bounded strings."""
    rules = _Rules()
    for found in list(NAMED.finditer(grammar)):
        most = None if found["most"] == "-" else int(found["most"])
        string = f"{QUOTE} {found['name']} {QUOTE}"
        if string in grammar:
            grammar = grammar.replace(string, f"{QUOTE} {rules.body(int(found['least']), most)}")
            grammar = grammar.replace(f"{found[0]}\n", "")
    return "\n".join([grammar, *(f"{name} ::= {body}" for name, body in rules.made.items())])


def _regex(least: int, most: int | None, end: str = "") -> str:
    bounds = f"{{{least},{'' if most is None else most}}}"
    return f"Regex({json.dumps(f'{CHARACTER}{bounds}{end}')})"


class _Rules:
    """Rules by name. All lengths share those that count."""

    def __init__(self) -> None:
        self.made: dict[str, str] = {}

    def body(self, least: int, most: int | None) -> str:
        """The rules for the rest of a string, the closing quote included."""
        if most is None or most - least <= NEAR:
            return self._after(least, most)
        parts = [self._counted("must", least - NEAR)] if least > NEAR else []
        first = min(least, NEAR)
        if first:
            self._base("may")
            parts.append(self._rule(f"weft_first_{first}", f"{_regex(first, first)} (=weft_may)"))
        return " ".join([*parts, self._at_most(most - NEAR - least, is_last=True)])

    def _after(self, least: int, most: int | None) -> str:
        """Counted characters that must come, and one automaton for the others."""
        left = min(least, NEAR)
        name = f"weft_rest_{least}_{'' if most is None else most}"
        self._rule(name, _regex(left, None if most is None else most - least + left, r"\x22"))
        return f"{self._counted('must', least - left)} {name}" if least > left else name

    def _rule(self, name: str, body: str) -> str:
        self.made.setdefault(name, body)
        return name

    def _counted(self, kind: str, times: int) -> str:
        """So many characters, after which at least `NEAR` more must come, or may."""
        self._base(kind)
        return f"weft_each_{kind}{{{times},{times}}}"

    def _base(self, kind: str) -> None:
        if f"weft_each_{kind}" in self.made:
            return
        self._rule("weft_one", _regex(1, 1))
        self._rule("weft_any", r"[\0-\U0010ffff]")
        self._rule("weft_none", r'"" | [^\0-\U0010ffff]')
        self._rule(f"weft_each_{kind}", f"weft_char_{kind} weft_none")
        self._rule(f"weft_char_{kind}", f"{_regex(1, 1)} (=weft_{kind})")
        if kind == "must":
            self._rule("weft_must", " ".join(["weft_one"] * NEAR))
            return
        self._rule("weft_may", f"weft_may_{NEAR}")
        for left in range(NEAR + 1):
            more = f"weft_one weft_may_{left - 1}" if left else "weft_one"
            self._rule(f"weft_may_{left}", f"{QUOTE} weft_any | {more}")

    def _at_most(self, most: int, is_last: bool) -> str:
        """A rule for at most so many characters and the quote; the last of a string have `NEAR` more after them."""
        name = f"weft_most_{most}{'_last' if is_last else ''}"
        pending = [(most, is_last)]
        for left, last in pending:  # it grows meanwhile
            own = f"weft_most_{left}{'_last' if last else ''}"
            if own in self.made:
                continue
            if left == 0:
                self._rule(own, _regex(0, NEAR, r"\x22") if last else QUOTE)
            elif left < BLOCK:
                self._base("may")
                self._rule(own, f"{QUOTE} | weft_each_may weft_most_{left - 1}{'_last' if last else ''}")
                pending.append((left - 1, last))
            else:
                block = BLOCK
                while block * BLOCK <= left:
                    block *= BLOCK
                rest = f"weft_most_{left - block}{'_last' if last else ''}"
                self._rule(own, f"{self._counted('may', block)} {rest} | weft_most_{block - 1}")
                pending += [(left - block, last), (block - 1, False)]
        return name

"""Strings with `minLength` or `maxLength`, as rules of XGrammar's EBNF. An escape sequence counts as one character.

With XGrammar's own repetition of such a character, a mask takes a hundred milliseconds: at the end of a repeated rule
it checks every token again. It skips that check if the rule has an exact look-ahead. So a string has two parts. The
last `NEAR` characters are one automaton. The characters before them are a rule with a look-ahead, which is exact as
long as at least `NEAR` more characters may follow. Counts are built from blocks, so that few parses of a prefix stay
open at the same time.
"""

from __future__ import annotations

import json
import re

from weft.grammar.xgrammar.patterns import PREFIX

LENGTH = f"{PREFIX}of length "
NEAR = 48
BLOCK = 64

# One character, raw or escaped, without surrogates. Each class has characters of one UTF-8 length: for a class of mixed
# lengths XGrammar accepts invalid UTF-8.
CHARACTER = (
    r"(?:[\x20-\x21\x23-\x5b\x5d-\x7f]|[\u{80}-\u{7ff}]|[\u{800}-\u{d7ff}\u{e000}-\u{ffff}]|[\u{10000}-\u{10ffff}]"
    r"|\\(?:[\x22\x5c\x2fbfnrt]"
    r"|u(?:[0-9A-Ca-cE-Fe-f][0-9A-Fa-f]|[Dd][0-7])[0-9A-Fa-f][0-9A-Fa-f]))"
)
QUOTE = r'"\""'
NAMED = re.compile(
    rf'^(?P<name>\w+) ::= Regex\("{LENGTH}(?P<low>\d+) (?P<high>\d+|-)", json_string=true\)$', re.M
)


def named_length(low: int, high: int | None) -> str:
    """A placeholder pattern for a string with bounds. XGrammar gets it, and `with_lengths` replaces it later."""
    return f"{LENGTH}{low} {'-' if high is None else high}"


def length_in_json(name: str) -> str | None:
    """The regular expression for the text between the quotes, for a placeholder of `named_length`; None for any other
    text. XGrammar's masks for it are slow, so it is only for placeholders that `with_lengths` did not replace."""
    bounds = re.fullmatch(rf"{LENGTH}(\d+) (\d+|-)", name)
    return bounds and f"{CHARACTER}{{{bounds[1]},{bounds[2].strip('-')}}}"


def with_lengths(grammar: str) -> str:
    """Replace the placeholders of bounded strings in a grammar's EBNF by rules."""
    rules = _Rules()
    for named in list(NAMED.finditer(grammar)):
        high = None if named["high"] == "-" else int(named["high"])
        string = f"{QUOTE} {named['name']} {QUOTE}"
        if string in grammar:
            grammar = grammar.replace(string, f"{QUOTE} {rules.body(int(named['low']), high)}")
            grammar = grammar.replace(f"{named[0]}\n", "")
    return "\n".join([grammar, *(f"{name} ::= {body}" for name, body in rules.made.items())])


def _regex(low: int, high: int | None, end: str = "") -> str:
    bounds = f"{{{low},{'' if high is None else high}}}"
    return f"Regex({json.dumps(f'{CHARACTER}{bounds}{end}')})"


class _Rules:
    """Makes the rules of bounded strings, by name. The counting rules are shared by strings of all lengths."""

    def __init__(self) -> None:
        self.made: dict[str, str] = {}

    def body(self, low: int, high: int | None) -> str:
        """Make the rules for a string of `low` to `high` characters, without the opening quote. Returns the EBNF
        expression that refers to them."""
        if high is None or high - low <= NEAR:
            return self._after(low, high)
        parts = [self._counted("must", low - NEAR)] if low > NEAR else []
        num_first = min(low, NEAR)
        if num_first:
            self._base("may")
            parts.append(self._rule(f"weft_first_{num_first}", f"{_regex(num_first, num_first)} (=weft_may)"))
        return " ".join([*parts, self._at_most(high - NEAR - low, is_last=True)])

    def _after(self, low: int, high: int | None) -> str:
        """Make counted characters for the required part, and one automaton for the rest of the string."""
        num_last = min(low, NEAR)
        name = f"weft_rest_{low}_{'' if high is None else high}"
        self._rule(name, _regex(num_last, None if high is None else high - low + num_last, r"\x22"))
        return f"{self._counted('must', low - num_last)} {name}" if low > num_last else name

    def _rule(self, name: str, body: str) -> str:
        self.made.setdefault(name, body)
        return name

    def _counted(self, kind: str, times: int) -> str:
        """Exactly `times` characters. After them at least `NEAR` more characters are required (kind "must"), or are
        allowed (kind "may")."""
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

    def _at_most(self, high: int, is_last: bool) -> str:
        """Make a rule for at most `high` characters and the closing quote. With `is_last`, up to `NEAR` more characters
        may come before the quote."""
        name = f"weft_most_{high}{'_last' if is_last else ''}"
        # "At most n" is a full block of BLOCK ** k characters and "at most n - block", or "at most block - 1". Below
        # BLOCK it counts down by one. This keeps the number of rules and of open parses small.
        pending = [(high, is_last)]
        for left, last in pending:  # the loop appends to it
            rule = f"weft_most_{left}{'_last' if last else ''}"
            if rule in self.made:
                continue
            if left == 0:
                self._rule(rule, _regex(0, NEAR, r"\x22") if last else QUOTE)
            elif left < BLOCK:
                self._base("may")
                self._rule(rule, f"{QUOTE} | weft_each_may weft_most_{left - 1}{'_last' if last else ''}")
                pending.append((left - 1, last))
            else:
                block = BLOCK
                while block * BLOCK <= left:
                    block *= BLOCK
                rest = f"weft_most_{left - block}{'_last' if last else ''}"
                self._rule(rule, f"{self._counted('may', block)} {rest} | weft_most_{block - 1}")
                pending += [(left - block, last), (block - 1, False)]
        return name

"""Lark grammars for LLGuidance: resolves special tokens in a user's grammar, and translates GBNF to Lark.

LLGuidance knows special tokens only by id. They have no text, so no grammar allows one by accident. A name such as
`<|tool_call|>` is replaced by the token's id, `<[128010]>`.

LLGuidance's lexer takes the longest match of a terminal and does not backtrack, so the split of a grammar into
terminals matters. A GBNF grammar without recursion becomes one terminal. In a recursive one, each terminal is a single
character, which makes masks slower. Both translations are exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from weft.errors import GuideError

# LLGuidance's lexemes. A name inside a comment, a string (also in `%json`) or a regex is plain text. The quantifiers
# are possessive, so the regex never backtracks. An unterminated string, which LLGuidance refuses, extends to the end of
# its line, and an unterminated regex to the end of the text. So the scan takes linear time.
LEXEMES = re.compile(
    r"""
    (?P<skipped> \s++ | (?: \#|// ) [^\n]*+ )
    | (?P<special> <[^<>\s]++> )
    | (?P<name> [A-Za-z_][\w-]*+ )
    | " (?: [^"\\\x00-\x1f]++ | \\. )*+ "?
    | / (?: [^/\\]++ | \\. )++ /?
    | [^\s\#/<A-Za-z_"=]++
    | .
    """,
    re.VERBOSE | re.DOTALL,
)

REFUSED_OPTIONS = ("max_tokens", "stop", "temperature")
"""Rule options that weft can't support: masks would depend on more than the text, or text would be removed again."""


def with_numbers(grammar: str, names: Mapping[str, int]) -> str:
    """Replace the names of special tokens in a grammar by their ids. Raises `GuideError` for a name that is not in
    `names`, and for options that are not supported."""
    parts: list[str] = []
    last_name = ""
    for lexeme in LEXEMES.finditer(grammar):
        text = lexeme[0]
        kind = lexeme.lastgroup
        if kind == "special" and not text.startswith("<["):
            text = _number(text, names)
        elif text == "=" and last_name in REFUSED_OPTIONS:
            raise _refused(last_name)
        parts.append(text)
        if kind != "skipped":
            last_name = text if kind == "name" else ""
    return "".join(parts)


def _number(name: str, names: Mapping[str, int]) -> str:
    if name not in names:
        raise GuideError(f"Lark: {name} is not a special token of this tokenizer; {_instead(names)}")
    return f"<[{names[name]}]>"


def _refused(option: str) -> GuideError:
    instead = ", or use suffix" if option == "stop" else ""
    return GuideError(
        f"Lark: {option} is not supported, since masks must not depend on more than the text; leave it out{instead}"
    )


def _instead(names: Mapping[str, int]) -> str:
    known = sorted(name for name in names if re.fullmatch(r"<[^<>\s]+>", name))
    examples = f"it has {', '.join(known[:8])}{' and others' if len(known) > 8 else ''}; " if known else ""
    return f'{examples}give a token\'s number, as <[7]>, or write what is text in quotes, as "<tag>"'


TOKEN = re.compile(
    r"""(?P<blank>[ \t]++|\#[^\n]*+)|(?P<line>(?:\r?\n)++)|(?P<is>::=)|(?P<name>[A-Za-z_][\w.-]*+)
    |"(?P<text>(?:[^"\\\n]++|\\.)*+)"|\[(?P<set>(?:[^\]\\\n]++|\\.)*+)\]
    |\{(?P<bounds>\s*+\d++\s*+(?:,\s*+\d*+\s*+)?+)\}|(?P<mark>[|()*+?])""",
    re.VERBOSE,
)
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
NAMED = {
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "\\": "\\",
    '"': '"',
    "'": "'",
    "]": "]",
    "[": "[",
    "-": "-",
    "^": "^",
}


def to_lark(grammar: str) -> str:
    """Translate a valid GBNF grammar to Lark. Raises `GuideError` for a part that Lark can't express."""
    rules = _Parser(grammar).rules()
    if "root" not in rules:
        raise GuideError("EBNF: the grammar has no rule called root")
    numbers = {name: i for i, name in enumerate(rules)}
    for rule in rules.values():
        for name in rule.names:
            if name not in rules:
                raise GuideError(f"EBNF: rule {name!r} is not defined")
    recursive = _is_recursive(rules)
    lines = [f"start: {_name(numbers['root'], recursive)}"]
    lines += [
        f"{_name(numbers[rule.name], recursive)}: {_body(rule, numbers, recursive)}"
        for rule in rules.values()
    ]
    return "\n".join(lines) + "\n"


def literal(text: str) -> str:
    """A regular expression that matches exactly this text."""
    return "".join(_spelled(char) for char in text)


@dataclass
class _Rule:
    name: str
    parts: list[tuple[str, str]] = field(default_factory=list)

    @property
    def names(self) -> Iterator[str]:
        return (text for kind, text in self.parts if kind == "name")


class _Parser:
    """Splits a GBNF grammar into rules, each a list of (kind, text) tokens."""

    def __init__(self, grammar: str) -> None:
        self._tokens = list(_tokens(grammar))

    def rules(self) -> dict[str, _Rule]:
        rules: dict[str, _Rule] = {}
        rule: _Rule | None = None
        for i, (kind, text) in enumerate(self._tokens):
            if kind == "is":
                continue
            if kind == "name" and self._tokens[i + 1 : i + 2] == [("is", "::=")]:
                rule = rules.setdefault(text, _Rule(text))
                if rule.parts:
                    raise GuideError(f"EBNF: rule {text!r} is defined twice")
            elif rule is None:
                raise GuideError(f"EBNF: {text!r} stands before the first rule")
            else:
                rule.parts.append((kind, text))
        return rules


def _tokens(grammar: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(grammar):
        match = TOKEN.match(grammar, position)
        if match is None or match.lastgroup is None:
            context = grammar[position : position + 20].splitlines()[0]
            raise GuideError(f"EBNF: LLGuidance has no counterpart of what stands at {context!r}")
        if match.lastgroup not in ("blank", "line"):
            yield match.lastgroup, match[match.lastgroup]
        position = match.end()


def _is_recursive(rules: dict[str, _Rule]) -> bool:
    """Whether a rule reachable from `root` is recursive."""
    done: set[str] = set()
    open_rules = {"root": None}  # the path of rules from the root, in order
    paths: dict[str, Iterator[str]] = {"root": iter(rules["root"].names)}
    while open_rules:
        name = next(paths[next(reversed(open_rules))], None)
        if name is None:
            done.add(open_rules.popitem()[0])
        elif name in open_rules:
            return True
        elif name not in done:
            open_rules[name] = None
            paths[name] = iter(rules[name].names)
    return False


def _name(number: int, recursive: bool) -> str:
    return f"r{number}" if recursive else f"R{number}"


def _body(rule: _Rule, numbers: dict[str, int], recursive: bool) -> str:
    return " ".join(_part(kind, text, numbers, recursive) for kind, text in rule.parts)


def _part(kind: str, text: str, numbers: dict[str, int], recursive: bool) -> str:
    if kind == "name":
        return _name(numbers[text], recursive)
    if kind == "text":
        chars = [_spelled(char) for char in _unescaped(text)]
        if not chars:
            return '""'
        return "(" + " ".join(f"/{char}/" for char in chars) + ")" if recursive else f"/{''.join(chars)}/"
    if kind == "set":
        return f"/{_class(text)}/"
    if kind == "bounds":
        low, comma, high = (part.strip() for part in text.partition(","))
        return f"{{{low},{high}}}" if comma else f"{{{low}}}"
    return text


def _unescaped(text: str) -> list[str]:
    """The characters of a literal or a class, with escapes resolved."""
    chars = []
    position = 0
    while position < len(text):
        match = ESCAPE.match(text, position)
        if match is None:
            chars.append(text[position])
            position += 1
            continue
        code = match[1] or match[2] or match[3]
        if code is None and match[4] not in NAMED:
            raise GuideError(f"EBNF: the escape {match[0]!r} is not known")
        chars.append(chr(int(code, 16)) if code else NAMED[match[4]])
        position = match.end()
    return chars


def _class(text: str) -> str:
    negated = text.startswith("^")
    body = text[1:] if negated else text
    # An unescaped hyphen makes a range; an escaped one is a member.
    pieces = [piece for piece in re.split(r"((?:\\.)|-)", body, flags=re.DOTALL) if piece]
    plain = ["-" if piece == "-" else "" for piece in pieces]
    chars: list[tuple[str, bool]] = []
    pending = ""
    for piece, is_range in zip(pieces, plain, strict=True):
        if is_range:
            chars += [(char, False) for char in _unescaped(pending)]
            pending = ""
            chars.append(("-", True))
        else:
            pending += piece
    chars += [(char, False) for char in _unescaped(pending)]
    last = len(chars) - 1
    spelled = "".join(
        "-" if is_range and 0 < i < last else _spelled(char) for i, (char, is_range) in enumerate(chars)
    )
    return f"[{'^' if negated else ''}{spelled}]"


def _spelled(char: str) -> str:
    """Escape a character for a regular expression, inside or outside a class."""
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"

"""Writes the tables of docs/executor-fields.md: `python tools/docs/executor_fields.py`.

TensorRT-LLM's names come from `weft/migration/api.json`, weft's from its classes. The tables of
`weft.executor.types.refused` and `weft.migration.absent` list the names that are refused, are absent or behave
differently. The descriptions of fields are in docs/executor-fields.md only. Rows keep their text, and a new row says
"?" until a description is written.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path

from weft.migration import ours
from weft.migration.api import load
from weft.migration.verdict import NO_EFFECT, OTHERWISE, State, judge, judge_class, other_default, short

PAGE = Path(__file__).parents[2] / "docs" / "executor-fields.md"
HEADING = "## Fields"
UNSAID = "?"
API = load()

GENERIC = frozenset({"to_dict", "from_dict", "to_json", "from_json", "snapshot", "check"})
"""Methods that most of weft's classes have. The page lists them once."""
OF_THE_EXECUTOR = frozenset(
    {"allotted_s", "check_alone", "decode_duration_s", "drafts", "duration_s", "is_greedy", "num_requests"}
    | {"num_sequences", "parameters", "policy", "queue_size", "sampling", "to_guide", "unread_guide"}
)
"""Derived properties for the executor's internal use."""
NEVER_GIVEN = ("SpeculativeDecodingFastLogitsInfo", "DisServingRequestStats")
"""Classes without instances, because weft refuses the features that would return them."""

INTRO = """\
These tables list every name of TensorRT-LLM: those of its newest Python bindings with an `Executor`, and further names
of its C++ API. A refused field stores its value, but only its default can be used. With another value, making the
executor raises `InputError` with the reason given here, and a request is answered with an error. Fields without effect
are accepted for compatibility. Fields of results and statistics for refused features exist and stay empty.
`python -m weft.migration` finds all of these names in a program ([executor.md](executor.md#checking-a-program)).

Settings, results and statistics also have `to_dict`, `from_dict`, `to_json` and `from_json`.
"""

REFUSED, ABSENT, IDLE, OWN = "refused: ", "not here: ", "no effect: ", "weft's own: "
MEANING, DEFAULT = "; *other meaning*: ", "; *other default*: in TensorRT-LLM "
MEMBER = re.compile(r"^[A-Z]\w*\.(?=[A-Z_]+$)")
ROW = re.compile(r"^\| `([\w.]+)(\(.*?\))?` \| (.*?) \| (.*) \|$")


@dataclass
class Words:
    """The texts of the current page: descriptions by class and name, and the classes in order."""

    order: list[str] = field(default_factory=list)
    said: dict[tuple[str, str], str] = field(default_factory=dict)

    @classmethod
    def of(cls, page: str) -> Words:
        """Parse the page."""
        words = cls()
        for line in fields_of(page).splitlines():
            if line.startswith("### "):
                words.order.append(line.removeprefix("### "))
            elif (row := ROW.match(line)) and words.order and not row[4].startswith((REFUSED, ABSENT, IDLE)):
                text = row[4].removeprefix(OWN).split(MEANING)[0].split(DEFAULT)[0]
                words.said[words.order[-1], row[1]] = text
        return words

    def about(self, cls: str, name: str) -> str:
        """Return the description of a name; "?" if it has none."""
        return self.said.get((short(cls), name), UNSAID)


def fields_of(page: str) -> str:
    """Return the generated part, which is the last of the page."""
    _, _, part = page.partition(f"\n{HEADING}\n")
    return part


def rewritten(page: str) -> str:
    """Return the page with its generated part rewritten."""
    before, _, _ = page.partition(f"\n{HEADING}\n")
    return f"{before}\n{HEADING}\n\n{fields(Words.of(page))}"


def fields(words: Words) -> str:
    """Return the generated part."""
    parts = [INTRO, *other_meanings()]
    parts += [section(name, words) for name in in_order(words)]
    parts += [enumerations(), without_section()]
    return "\n".join(parts)


def in_order(words: Words) -> list[str]:
    """Return the classes that have a section, those on the page first and in its order."""
    found = [name for name in dict.fromkeys((*API.classes, *ours.classes())) if has_section(name)]
    by_short: dict[str, str] = {}
    for name in found:
        by_short.setdefault(short(name), name)
    known = [by_short[name] for name in words.order if name in by_short]
    return list(dict.fromkeys((*known, *by_short.values())))


def has_section(name: str) -> bool:
    """Whether weft has the class, and a program can use it."""
    return ours.class_of(name) is not None and not ours.is_enumeration(name) and not is_held_only(name)


def is_held_only(name: str, asked: tuple[str, ...] = ()) -> bool:
    """Whether every name that takes or returns an instance of the class is refused or has no effect."""
    if name in asked:
        return True
    if short(name) in NEVER_GIVEN:
        return True
    takers = [
        (cls.name, one.name)
        for cls in API.classes.values()
        for constructor in cls.constructors
        for one in constructor
        if one.holds is not None and short(name) in re.findall(r"\w+", one.holds)
    ]
    return bool(takers) and all(
        judge(cls, field).state in (State.REFUSED, State.ABSENT, State.NO_EFFECT)
        or is_held_only(cls, (*asked, name))
        for cls, field in takers
    )


def takers_of(name: str) -> list[str]:
    """Return the fields that take an instance of the class."""
    return [
        f"{cls.short}.{one.name}"
        for cls in API.classes.values()
        for constructor in cls.constructors
        for one in constructor
        if one.holds is not None and short(name) in re.findall(r"\w+", one.holds)
    ]


# -- one class


def section(name: str, words: Words) -> str:
    """Return the table of a class."""
    rows = [*field_rows(name, words), *method_rows(name)]
    return "\n".join([f"### {short(name)}", "", "| name | default | |", "|---|---|---|", *rows, ""])


def field_rows(name: str, words: Words) -> Iterator[str]:
    """Yield the rows of fields: weft's, then those that only TensorRT-LLM has."""
    mine, theirs = ours.names(ours.class_of(name)), API.find(name)  # type: ignore[arg-type]
    for one, own in mine.items():
        if own.what == "field" and is_for_programs(name, one):
            yield f"| `{one}` | {default_of(own.default)} | {said_of(name, one, words)} |"
    for one, own in mine.items():
        if own.what == "constant" and theirs is not None and one in theirs.constants:
            yield f"| `{one}` | `{getattr(ours.class_of(name), one)!r}` | {said_of(name, one, words)} |"
        if own.what == "property" and one not in OF_THE_EXECUTOR:
            yield f"| `{one}` |  | {said_of(name, one, words)} |"
    if theirs is not None:
        for one in theirs.names():
            if one not in mine and one not in theirs.methods:
                yield f"| `{one}` |  | {said_of(name, one, words)} |"


def is_for_programs(cls: str, field: str) -> bool:
    """Whether a program may set the field. Classes that the executor makes, and that TensorRT-LLM's programs only read,
    do not count."""
    theirs = API.find(cls)
    is_data = is_dataclass(ours.class_of(cls))
    return is_data or theirs is None or bool(theirs.constructors) or field in theirs.names()


def said_of(cls: str, name: str, words: Words) -> str:
    """Return the description of a field, and its difference from TensorRT-LLM's."""
    verdict = judge(cls, name)
    if verdict.state is State.REFUSED:
        return REFUSED + verdict.why
    if verdict.state is State.NO_EFFECT:
        return IDLE + verdict.why
    if verdict.state is State.OLDER:
        return f"{REFUSED}it has a newer name: {verdict.why}"
    if verdict.state is State.ABSENT:
        return ABSENT + (verdict.why or UNSAID)
    text = words.about(cls, name)
    if text == UNSAID:
        text = first_sentence(inspect.getattr_static(ours.class_of(cls), name, None)) or UNSAID
    if verdict.state is State.OWN and API.find(cls) is not None:
        text = OWN + text
    if verdict.state is State.OTHERWISE:
        text += MEANING + verdict.why
    if other_default(cls, name) is not None:
        theirs = API.find(cls)
        parameter = theirs.parameter(name) if theirs is not None else None
        text += f"{DEFAULT}{default_of(parameter.default if parameter is not None else None)}"
    return text


def default_of(text: str | None) -> str:
    """Return a default as the tables show it: an enumeration's member without its class."""
    if text is None:
        return ""
    return f"`{MEMBER.sub('', text)}`"


def method_rows(name: str) -> Iterator[str]:
    """Yield the rows of methods: TensorRT-LLM's, then weft's own. Each is described by the first sentence of its
    docstring."""
    mine, theirs = ours.names(ours.class_of(name)), API.find(name)  # type: ignore[arg-type]
    there = theirs.methods if theirs is not None else {}
    for one in (*there, *(one for one in mine if mine[one].what == "method" and one not in there)):
        if one in GENERIC or one in OF_THE_EXECUTOR:
            continue
        verdict = judge(name, one)
        taken = ours.parameters(name, one) or (there[one][0].parameters if one in there else ())
        signature = f"`{one}({', '.join(parameter.name for parameter in taken)})`"
        if verdict.state is State.ABSENT:
            yield f"| {signature} |  | {ABSENT}{verdict.why or UNSAID} |"
            continue
        text = first_sentence(inspect.getattr_static(ours.class_of(name), one)) or UNSAID
        if one.startswith("__"):
            text = "as in `with`"
        if verdict.state is State.OWN:
            text = OWN + text
        if verdict.state is State.OTHERWISE:
            text += MEANING + verdict.why
        yield f"| {signature} |  | {text}{other_names(name, one)} |"


def other_names(cls: str, method: str) -> str:
    """Return TensorRT-LLM's parameters that have other names in weft's method."""
    mine = {one.name for one in ours.parameters(cls, method) or ()}
    theirs = API.find(cls)
    forms = theirs.methods.get(method, ()) if theirs is not None else ()
    names = dict.fromkeys(one.name for form in forms for one in form.parameters if one.name not in mine)
    found = [f"`{one}`: {judge(f'{short(cls)}.{method}', one).why}" for one in names]
    found = [one for one in found if not one.endswith(": ")]
    return f"; {'; '.join(found)}" if found else ""


def first_sentence(held: object) -> str:
    """Return the first sentence of a docstring in the form of the tables: no capital, no full stop."""
    if isinstance(held, property):
        held = held.fget
    if isinstance(held, staticmethod | classmethod):
        held = held.__func__
    if not inspect.isroutine(held):
        return ""
    text = " ".join((inspect.getdoc(held) or "").split())
    sentence = re.split(r"(?<=[\w)`])\.(?: |$)", text)[0].replace("|", "\\|")
    return sentence[:1].lower() + sentence[1:] if sentence[1:2].islower() else sentence


# -- all classes


def other_meanings() -> Iterator[str]:
    """Yield the names that behave differently in weft."""
    rows = [f"| `{name}` | {how} |" for name, how in OTHERWISE.items()]
    for cls in API.classes.values():
        for one in cls.names():
            if (how := other_default(cls.name, one)) is not None:
                rows.append(f"| `{cls.short}.{one}` | {how} |")
    yield "### Same name, other meaning\n"
    if rows:
        yield "\n".join(["| name | what is different |", "|---|---|", *rows, ""])
    else:
        yield "There is no such name.\n"


def enumerations() -> str:
    """Return the table of enumerations."""
    names = [name for name in dict.fromkeys((*API.classes, *ours.classes())) if ours.is_enumeration(name)]
    by_short: dict[str, str] = {}
    for name in names:
        by_short.setdefault(short(name), name)
    rows = [f"| `{one}` | {members_of(name)} |" for one, name in by_short.items() if ours.class_of(name)]
    return "\n".join(["### Enumerations", "", "| class | members |", "|---|---|", *rows, ""])


def members_of(name: str) -> str:
    """Return the members of an enumeration in weft and TensorRT-LLM. Refused ones have their reason."""
    theirs, mine = API.find(name), ours.names(ours.class_of(name))  # type: ignore[arg-type]
    members = [*(theirs.members if theirs is not None else ())]
    members += [one for one, own in mine.items() if own.what == "member" and one not in members]
    taken = [one for one in members if judge(name, one).state in (State.HAS, State.OTHERWISE)]
    parts = [", ".join(f"`{one}`" for one in taken)] if taken else []
    reasons: dict[str, list[str]] = {}
    for one in members:
        verdict = judge(name, one)
        if verdict.state in (State.REFUSED, State.ABSENT):
            start = REFUSED if verdict.state is State.REFUSED else ABSENT
            reasons.setdefault(f"{start.removesuffix(': ')} ({verdict.why})", []).append(f"`{one}`")
    parts += [f"{', '.join(held)} {reason}" for reason, held in reasons.items()]
    own = [f"`{one}`" for one in members if judge(name, one).state is State.OWN]
    parts += [f"{OWN}{', '.join(own)}"] if own else []
    return "; ".join(parts)


def without_section() -> str:
    """Return classes and functions that weft lacks, and classes that no name takes or returns."""
    rows = []
    for name, cls in API.classes.items():
        if has_section(name) or (ours.is_enumeration(name) and ours.class_of(name) is not None):
            continue
        verdict = judge_class(name)
        lacks = [one for one in cls.names() if ours.class_of(name) and judge(name, one).state is State.ABSENT]
        held = ", ".join(f"`{one}`" for one in cls.names() if not one.startswith("__") and one not in lacks)
        if verdict.state is State.ABSENT:
            text = ABSENT + (verdict.why or UNSAID)
        else:
            takers = takers_of(name)
            kind = "has no effect" if any(one in NO_EFFECT for one in takers) else "is refused"
            names = ", ".join(f"`{one}`" for one in takers)
            text = (
                f"stores its data, but using it {kind}: {names}"
                if takers
                else "stores its data, but weft never returns one"
            )
            text += f"; not here: {', '.join(f'`{one}`' for one in lacks)}" if lacks else ""
        rows.append(f"| `{name}` | {held} | {text} |")
    for name in (*API.functions, *API.attributes, *API.submodules):
        verdict = judge_class(name)
        if verdict.state is State.ABSENT:
            rows.append(f"| `{name}` |  | {ABSENT}{verdict.why or UNSAID} |")
        else:
            rows.append(f"| `{name}` |  | as in TensorRT-LLM |")
    return "\n".join(["### Others", "", "| name | members | |", "|---|---|---|", *rows, ""])


def unsaid(page: str) -> list[str]:
    """Return the rows that say "?"."""
    return [line for line in fields_of(page).splitlines() if line.endswith(f"{UNSAID} |")]


def main() -> int:
    """Rewrite the page. Returns 1 if a row has no description."""
    page = rewritten(PAGE.read_text())
    PAGE.write_text(page)
    for line in unsaid(page):
        print(f"{PAGE}: say what it is, in place of {UNSAID!r}: {line}", file=sys.stderr)
    return 1 if unsaid(page) else 0


if __name__ == "__main__":
    sys.exit(main())

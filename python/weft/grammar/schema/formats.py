"""The values of `format` as patterns. The grammar libraries' own definitions are too loose. They accept 29 February of
any year, octets with leading zeros, times with second 60, labels of any length, and texts that are not valid JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.grammar.schema import patterns

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP = f"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_SHORT = "(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
_LONG = "(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31"
DATE = f"(?:{_LEAP}-02-29|{_YEAR}-(?:{_SHORT}|{_LONG}))"
ZONE = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = f"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?{ZONE}"
_DURATION_TIME = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION_DATE = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"(?:{OCTET}\\.){{3}}{OCTET}"
_HEXTET = "[0-9A-Fa-f]{1,4}"
_LAST = f"(?:{_HEXTET}:{_HEXTET}|{_IPV4})"
_IPV6 = [f"(?:{_HEXTET}:){{6}}{_LAST}"]
_IPV6 += [
    f"(?:(?:{_HEXTET}:){{0,{left}}}{_HEXTET})?::(?:{_HEXTET}:){{{4 - left}}}{_LAST}" for left in range(5)
]
_IPV6 += [f"::(?:{_HEXTET}:){{5}}{_LAST}", f"(?:(?:{_HEXTET}:){{0,5}}{_HEXTET})?::{_HEXTET}"]
_IPV6 += [f"(?:(?:{_HEXTET}:){{0,6}}{_HEXTET})?::"]
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = f"{_LABEL}(?:\\.{_LABEL})*"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = '"(?:[ !#-\\[\\]-~]|\\\\[ -~])*"'
_ESCAPED = "%[0-9A-Fa-f]{2}"
_OF_USER = f"(?:[A-Za-z0-9._~!$&'()*+,;=:-]|{_ESCAPED})"
_OF_HOST = f"(?:[A-Za-z0-9._~!$&'()*+,;=-]|{_ESCAPED})"
_OF_FIRST = f"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|{_ESCAPED})"
_OF_PATH = f"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|{_ESCAPED})"
_AT_HOST = f"//(?:{_OF_USER}*@)?{_OF_HOST}*(?::[0-9]*)?(?:/{_OF_PATH}*)*"
_FROM_ROOT = f"/(?:{_OF_PATH}+(?:/{_OF_PATH}*)*)?"
_AFTER = f"(?:\\?(?:{_OF_PATH}|[/?])*)?(?:#(?:{_OF_PATH}|[/?])*)?"
_SCHEME = "[A-Za-z][A-Za-z0-9+.-]*:"
_URI = f"{_SCHEME}(?:{_AT_HOST}|{_FROM_ROOT}|{_OF_PATH}+(?:/{_OF_PATH}*)*)?{_AFTER}"
_RELATIVE = f"(?:{_AT_HOST}|{_FROM_ROOT}|{_OF_FIRST}+(?:/{_OF_PATH}*)*)?{_AFTER}"
_OF_NAME = f"(?:[A-Za-z0-9_]|{_ESCAPED})"
_VARIABLE = f"{_OF_NAME}(?:\\.?{_OF_NAME})*(?::[1-9][0-9]{{0,3}}|\\*)?"
_TEMPLATE = f"(?:[!#$&(-;=?-\\[\\]_a-z~]|{_ESCAPED}|\\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\\}})*"
_JSON_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_UUID = "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"
_MEMBER = r"(?:a-z|A-Z|0-9|[A-Za-z0-9 !#%',./:;<=>@_`]|\\[dwsDWS.*+?()\[\]{}|\\/^$-])"
_ONE = rf"(?:[A-Za-z0-9 !#%&',/:;<=>@_`~.-]|\\[dwsDWS.*+?()\[\]{{}}|\\/^$]|\[\^?{_MEMBER}+-?\])"
_TIMES = r"(?:[*+?]|\{[0-9]\}|\{[0-9],\})?"
_FLAT = rf"(?:[\^$]|{_ONE}{_TIMES}|\|)*"
_OPEN_GROUP = r"\((?:\?:)?"
_DEEP = rf"(?:[\^$]|{_ONE}{_TIMES}|{_OPEN_GROUP}{_FLAT}\){_TIMES}|\|)*"
REGEX = rf"^(?:[\^$]|{_ONE}{_TIMES}|{_OPEN_GROUP}{_DEEP}\){_TIMES}|\|)*$"
"""The pattern of the format "regex". It allows groups inside groups, but no deeper nesting."""
PATTERNS = {
    "date": f"^{DATE}$",
    "date-time": f"^{DATE}[Tt]{_TIME}$",
    "time": f"^{_TIME}$",
    "duration": f"^P(?:[0-9]+W|{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME})$",
    "email": f"^(?:{_ATOM}(?:\\.{_ATOM})*|{_QUOTED})@{_HOST}$",
    "hostname": f"^{_HOST}$",
    "ipv4": f"^{_IPV4}$",
    "ipv6": f"^(?:{'|'.join(_IPV6)})$",
    "uuid": f"^{_UUID}$",
    "uri": f"^{_URI}$",
    "uri-reference": f"^(?:{_URI}|{_RELATIVE})$",
    "uri-template": f"^{_TEMPLATE}$",
    "json-pointer": f"^{_JSON_POINTER}$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]*)(?:#|{_JSON_POINTER})$",
}


def spell_format(node: dict[str, Any]) -> None:
    """Replace a known format by its pattern, in place, unless the node has a pattern already."""
    pattern = PATTERNS.get(node.get("format", ""))
    if pattern is not None and "pattern" not in node:
        del node["format"]
        node["pattern"] = pattern


APART = {"date-time", "time", "date", "duration", "email", "ipv4", "ipv6", "uuid"}
NO_HOSTS = {"date-time", "time", "email", "ipv6"}


def are_apart(formats: Iterable[str]) -> bool:
    """Whether it is certain that no text satisfies all these formats."""
    names = set(formats)
    return len(APART & names) > 1 or ("hostname" in names and bool(NO_HOSTS & names))


def implies(formats: Iterable[str], name: str) -> bool:
    """Whether every text that satisfies all these formats also satisfies the format `name`."""
    names = set(formats)
    return name in names or (name == "hostname" and bool({"date", "ipv4", "uuid"} & names))


INVERTED = {"date", "date-time", "time", "ipv4"}
"""The formats whose pattern has a short enough complement."""


def inverse(name: str) -> str | None:
    """A pattern for all texts that do not satisfy a format; None if none is known."""
    return patterns.inverse(PATTERNS[name]) if name in INVERTED else None

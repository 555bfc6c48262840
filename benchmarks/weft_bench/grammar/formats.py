"""Checks formats according to the documents that define them, because validators know different formats."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Callable

TIME = re.compile(
    r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9]|60)(\.[0-9]+)?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_AFTER_MINUTE = r"([0-9]+S)?"
_AFTER_HOUR = rf"([0-9]+M{_AFTER_MINUTE})?"
_OF_DAY = rf"(T([0-9]+H{_AFTER_HOUR}|[0-9]+M{_AFTER_MINUTE}|[0-9]+S))"
_AFTER_MONTH = r"([0-9]+D)?"
_DAYS = rf"([0-9]+Y([0-9]+M{_AFTER_MONTH})?|[0-9]+M{_AFTER_MONTH}|[0-9]+D)"
DURATION = re.compile(rf"P({_DAYS}{_OF_DAY}?|{_OF_DAY}|[0-9]+W)")
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HOSTNAME = re.compile(rf"{LABEL}(\.{LABEL})*")
ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
QUOTED = r'"([\x20\x21\x23-\x5b\x5d-\x7e]|\\[\x20-\x7e])*"'
EMAIL = re.compile(rf"({ATOM}(\.{ATOM})*|{QUOTED})@({LABEL}(\.{LABEL})*|\[[\x21-\x5a\x5e-\x7e]+\])")
OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
IPV4 = re.compile(rf"{OCTET}(\.{OCTET}){{3}}")
UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
POINTER = r"(/([^~/]|~[01])*)*"
JSON_POINTER = re.compile(POINTER)
RELATIVE_POINTER = re.compile(rf"(0|[1-9][0-9]*)([+-](0|[1-9][0-9]*))?(#|{POINTER})")

_PLAIN = r"A-Za-z0-9._~!$&'()*+,;=\-"
_PERCENT = r"%[0-9A-Fa-f]{2}"
_LETTER = rf"([{_PLAIN}:@]|{_PERCENT})"
_HOST = rf"(\[[0-9A-Fa-f:.]+\]|\[v[0-9A-Fa-f]+\.[{_PLAIN}:]+\]|([{_PLAIN}]|{_PERCENT})*)"
_AUTHORITY = rf"(([{_PLAIN}:]|{_PERCENT})*@)?{_HOST}(:[0-9]*)?"
_REST = rf"(\?({_LETTER}|[/?])*)?(#({_LETTER}|[/?])*)?"
_PATH = rf"(//{_AUTHORITY}(/{_LETTER}*)*|/({_LETTER}+(/{_LETTER}*)*)?|{{first}}(/{_LETTER}*)*|)"
URI = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*:{_PATH.replace('{first}', _LETTER + '+')}{_REST}")
RELATIVE = re.compile(rf"{_PATH.replace('{first}', _LETTER.replace(':', '') + '+')}{_REST}")

_VARIABLE = r"([A-Za-z0-9_]|%[0-9A-Fa-f]{2})(\.?([A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*(:[1-9][0-9]{0,3}|\*)?"
_EXPRESSION = rf"\{{[+#./;?&=,!@|]?{_VARIABLE}(,{_VARIABLE})*\}}"
TEMPLATE = re.compile(rf"([^\x00-\x20\"'%<>\\^`{{|}}]|{_PERCENT}|{_EXPRESSION})*")


def _is_date(text: str) -> bool:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return False
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _is_time(text: str) -> bool:
    found = TIME.fullmatch(text)
    if found is None or found[3] != "60":
        return found is not None
    zone = found[5]
    minutes = 0 if zone in "zZ" else int(zone[0] + "1") * (int(zone[1:3]) * 60 + int(zone[4:]))
    return (int(found[1]) * 60 + int(found[2]) - minutes) % 1440 == 1439


def _is_date_time(text: str) -> bool:
    return text[10:11] in ("T", "t") and _is_date(text[:10]) and _is_time(text[11:])


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.IPv6Address(text).scope_id is None
    except ValueError:
        return False


def _is_regex(text: str) -> bool:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _is_hostname(text: str) -> bool:
    return len(text) <= 253 and HOSTNAME.fullmatch(text) is not None


def _matches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


CHECKS: dict[str, Callable[[str], bool]] = {
    "date": _is_date,
    "time": _is_time,
    "date-time": _is_date_time,
    "duration": _matches(DURATION),
    "email": _matches(EMAIL),
    "hostname": _is_hostname,
    "ipv4": _matches(IPV4),
    "ipv6": _is_ipv6,
    "uuid": _matches(UUID),
    "uri": _matches(URI),
    "uri-reference": lambda text: bool(URI.fullmatch(text) or RELATIVE.fullmatch(text)),
    "uri-template": _matches(TEMPLATE),
    "json-pointer": _matches(JSON_POINTER),
    "relative-json-pointer": _matches(RELATIVE_POINTER),
    "regex": _is_regex,
}
"""Checks by format. Formats beyond ASCII (`iri`, `idn-hostname`) have no check."""

"""Where a `$ref` leads within one document: JSON pointers, `$id` and anchors, with the drafts' differences."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from weft.grammar.notes import Place

NOT_SCHEMAS = ("enum", "const", "default", "examples")


class References:
    """The places of a schema's text. `places` tells where an object stands, by its identity."""

    def __init__(self, root: Any, draft: int) -> None:
        self._id = "id" if draft <= 4 else "$id"
        self._draft = draft
        self.places: dict[int, Place | None] = {}
        self._bases: dict[int, str] = {}
        self._resources: dict[str, Any] = {"": root}
        self._anchors: dict[tuple[str, str], Any] = {}
        self.dynamic: dict[str, list[Any]] = {}
        self._walk(root)

    def resolve(self, node: dict[str, Any], reference: str) -> Any:
        """What a reference of `node` leads to. Raises `KeyError` where that is not in the document."""
        base, fragment = urldefrag(urljoin(self._bases.get(id(node), ""), reference))
        if base not in self._resources and reference.startswith("#"):
            base, fragment = self._bases.get(id(node), ""), reference[1:]
        resource = self._resources[base]
        if fragment and not fragment.startswith("/"):
            return self._anchors[base, fragment]
        return pointed(resource, fragment)

    def _walk(self, root: Any) -> None:
        pending: list[tuple[Place | None, Any, str]] = [(None, root, "")]
        while pending:
            place, node, base = pending.pop()
            if isinstance(node, list):
                pending += [(Place(place, i), item, base) for i, item in enumerate(node)]
            if not isinstance(node, dict):
                continue
            base = self._enter(node, base)
            self.places[id(node)] = place
            self._bases[id(node)] = base
            pending += [
                (Place(place, key), value, base)
                for key, value in node.items()
                if isinstance(value, dict | list) and key not in NOT_SCHEMAS
            ]

    def _enter(self, node: dict[str, Any], base: str) -> str:
        """The base of what is in an object; notes the names that it has."""
        name = node.get(self._id)
        if isinstance(name, str) and not (self._draft <= 7 and "$ref" in node):
            if name.startswith("#"):
                self._anchors.setdefault((base, name[1:]), node)
            else:
                base = urldefrag(urljoin(base, name))[0]
                self._resources.setdefault(base, node)
        for key in ("$anchor", "$dynamicAnchor"):
            anchor = node.get(key)
            if isinstance(anchor, str) and self._draft > 7:
                self._anchors.setdefault((base, anchor), node)
                if key == "$dynamicAnchor":
                    self.dynamic.setdefault(anchor, []).append(node)
        return base


def pointed(root: Any, pointer: str) -> Any:
    """What a JSON pointer, as it stands in a URI, leads to. Raises `KeyError`."""
    target = root
    for part in pointer.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isascii() and name.isdigit() and int(name) < len(target):
            target = target[int(name)]
        else:
            raise KeyError(pointer)
    return target

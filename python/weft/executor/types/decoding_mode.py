"""`DecodingMode`: what a program says of how tokens are decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True)
class DecodingMode:
    """A way to decide tokens, made by `DecodingMode.TopKTopP()` and the like; `parts` are what it combines."""

    name: str
    parts: frozenset[str]

    @staticmethod
    def Auto() -> DecodingMode:
        """Whatever requests ask for."""
        return _mode("Auto")

    @staticmethod
    def TopK() -> DecodingMode:
        """The k likeliest."""
        return _mode("TopK")

    @staticmethod
    def TopP() -> DecodingMode:
        """The fewest whose share reaches p."""
        return _mode("TopP")

    @staticmethod
    def TopKTopP() -> DecodingMode:
        """Both."""
        return _mode("TopKTopP", "TopK", "TopP")

    @staticmethod
    def BeamSearch() -> DecodingMode:
        """Beams."""
        return _mode("BeamSearch")

    @staticmethod
    def Medusa() -> DecodingMode:
        """Medusa heads."""
        return _mode("Medusa")

    @staticmethod
    def Lookahead() -> DecodingMode:
        """Lookahead decoding."""
        return _mode("Lookahead")

    @staticmethod
    def ExplicitDraftTokens() -> DecodingMode:
        """ReDrafter."""
        return _mode("ExplicitDraftTokens")

    @staticmethod
    def Eagle() -> DecodingMode:
        """An EAGLE head."""
        return _mode("Eagle")

    def isAuto(self) -> bool:
        """Whether it leaves the choice to requests."""
        return "Auto" in self.parts

    def isTopK(self) -> bool:
        """Whether top-k is part of it."""
        return "TopK" in self.parts

    def isTopP(self) -> bool:
        """Whether top-p is part of it."""
        return "TopP" in self.parts

    def isTopKorTopP(self) -> bool:
        """Whether one of the two is."""
        return self.isTopK() or self.isTopP()

    def isTopKandTopP(self) -> bool:
        """Whether both are."""
        return self.isTopK() and self.isTopP()

    def isBeamSearch(self) -> bool:
        """Whether it searches by beams."""
        return "BeamSearch" in self.parts

    def isMedusa(self) -> bool:
        """Whether it drafts with Medusa heads."""
        return "Medusa" in self.parts

    def isLookahead(self) -> bool:
        """Whether it drafts by lookahead."""
        return "Lookahead" in self.parts

    def isExplicitDraftTokens(self) -> bool:
        """Whether it drafts with ReDrafter."""
        return "ExplicitDraftTokens" in self.parts

    def isEagle(self) -> bool:
        """Whether it drafts with an EAGLE head."""
        return "Eagle" in self.parts

    def useVariableBeamWidthSearch(self) -> bool:
        """Whether the beams' width may change: `ExecutorConfig.use_variable_beam_width_search` says so."""
        return False

    @property
    def drafts(self) -> bool:
        """Whether it is a way to draft."""
        return bool(self.parts & {"Medusa", "Lookahead", "ExplicitDraftTokens", "Eagle"})

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        by_name = core_schema.no_info_after_validator_function(named, core_schema.literal_schema([*NAMES]))
        return core_schema.json_or_python_schema(
            by_name,
            core_schema.is_instance_schema(cls),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda mode: mode.name),
        )


NAMES = (
    "Auto",
    "TopK",
    "TopP",
    "TopKTopP",
    "BeamSearch",
    "Medusa",
    "Lookahead",
    "ExplicitDraftTokens",
    "Eagle",
)


def named(name: str) -> DecodingMode:
    """The mode of this name."""
    mode: DecodingMode = getattr(DecodingMode, name)()
    return mode


def _mode(name: str, *parts: str) -> DecodingMode:
    return DecodingMode(name, frozenset(parts or (name,)))

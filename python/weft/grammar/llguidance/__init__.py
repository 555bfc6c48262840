"""LLGuidance, natively: guides translated for it, and its matchers."""

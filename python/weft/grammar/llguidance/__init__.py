"""LLGuidance, natively: guides in its words, and its matchers."""

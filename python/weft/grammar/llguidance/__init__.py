"""The LLGuidance backend: translation of guides, and native matchers."""

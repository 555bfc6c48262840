"""The XGrammar backend: translation of guides, native matchers, and its grammars as byte rules. The llguidance backend
shares some of it; no other backend imports this folder."""

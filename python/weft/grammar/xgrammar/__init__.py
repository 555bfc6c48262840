"""XGrammar, natively: guides translated for it, its matchers, and its grammars as rules. Among the backends only
llguidance imports this folder."""

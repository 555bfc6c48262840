"""XGrammar, natively: guides in its words, its matchers, its grammars as rules. Of backends no other imports it but
llguidance.
"""

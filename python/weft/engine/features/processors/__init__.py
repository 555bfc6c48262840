"""Logits processors of users: in the graph, between its segments, and what checks both."""

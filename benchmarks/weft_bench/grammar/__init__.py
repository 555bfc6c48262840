"""The cost of guides, and the validity of answers."""

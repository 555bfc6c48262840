"""What becomes of tokens that an iteration committed."""

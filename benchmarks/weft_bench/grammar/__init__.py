"""What guides cost, and whether answers obey them."""

"""Bodies of requests: what fields there are, and which of them weft refuses, with the reason."""

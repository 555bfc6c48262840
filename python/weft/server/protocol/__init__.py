"""Bodies of requests: their fields, and the reasons for fields that weft refuses."""

"""Compiling guides in the background: trials in a child, turns among clients, a cache. Knows no grammar library."""

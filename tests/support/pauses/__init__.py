"""A process that is paused at random while it answers guided requests: none of its answers is another than
unpaused."""

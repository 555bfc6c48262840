"""What replays, host functions and the mask kernel cost."""

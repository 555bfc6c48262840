"""An executor under load."""

"""`python -m weft.cli` runs the command line."""

from weft.cli import main

main()

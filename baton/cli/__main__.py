"""`python -m baton.cli`: the same as `baton`."""

from baton.cli.app import main

main()

"""`python -m siafu`."""

from siafu.cli.main import main

main()

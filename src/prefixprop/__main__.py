"""`python -m prefixprop` is the command `prefixprop`."""

from prefixprop.cli import main

main()

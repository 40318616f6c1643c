"""The command line: one file per command.

Help and errors are shown before PyTorch is loaded: a command imports what it needs when it needs it.
"""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from prefixprop.cli.app import app

        app()
    except KeyboardInterrupt:  # also while Python is still importing
        print("Stopped.", file=sys.stderr)
        sys.exit(130)

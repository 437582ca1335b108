"""The command `lmhub`, which is also `python -m lmhub`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. What is interrupted, from the first import on, ends with 130."""
    try:
        from lmhub.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

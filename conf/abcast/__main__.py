"""The `abcast` command: the console script, and `python -m abcast`."""

from __future__ import annotations

from jobs.cli import main

if __name__ == "__main__":
    main()

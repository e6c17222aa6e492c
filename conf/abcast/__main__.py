"""The `abcast` command: the console script, and `python -m abcast`."""

from __future__ import annotations


def main() -> None:
    """Run the command line. Ctrl-C ends it with one line from the first moment on, even while modules are loaded."""
    from jobs.terminal.interruption import end_at_once

    end_at_once()
    from jobs.cli import main as run

    run()


if __name__ == "__main__":
    main()

"""Seeded, deterministic simulations of what ships, and the commands that run them.

`simulations` lists all worlds, each with its mutations; most worlds are in `tests.world`. `script` is the command
language of tests/traces.

    python -m tests.simulator --seeds 5000
    python -m tests.simulator --seed 17 --mutation not-lower
"""

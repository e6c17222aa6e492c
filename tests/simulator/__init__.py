"""A seeded, deterministic, single-threaded simulation of one group around the very same `ordering` core.

Read in this order: `broker` (the logs), `members`, `sequencers`, `readers` (deliverers and the ledger), `world` (all of
them, the faults, and the promises checked at the end), `schedule` (a seed's actions, running and shrinking them),
`mutations` (each rule broken on purpose), `script` (the command language of tests/traces). `simulations` lists
this world and all others, each with its mutations.

    python -m tests.simulator --seeds 5000
    python -m tests.simulator --seed 17 --mutation not-lower

Time does not exist here: only the order of actions does, and a seed fixes it.
"""

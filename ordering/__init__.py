"""The ordering core: every decision of abcast, and no I/O.

Deterministic, standard library and numpy only: no Spark, no Kafka, no clock, no randomness. The same code runs in
the Spark job, in the members, in the simulator and in the tests. Start reading at `ordering.sequencer.sequencer`.
"""

"""The ordering core: what abcast decides, and nothing of how records get in or out.

Deterministic, standard library and numpy only: no Spark, no Kafka, no clock, no randomness. The same code runs in
the Spark job, in the members, in the simulator and in the tests. Start reading at `ordering.sequencer.sequencer`.
"""

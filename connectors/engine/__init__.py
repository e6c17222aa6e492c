"""The engine for milliseconds: a sequencer in a plain Python process, without Spark and a JVM."""

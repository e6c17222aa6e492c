"""Options of the tests' JVMs: `tests/conftest.py` sets them for every process."""

SHORT_LIVED = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"}
"""Environment of a JVM that runs for minutes at most: Java's second compiler costs it more than it gives."""

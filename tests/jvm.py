"""What the JVMs of the tests are told: `tests/conftest.py` sets it for all that are started, by whatever process."""

SHORT_LIVED = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"}
"""Environment of one that lives for minutes at most: Java's second compiler costs it more than it gives."""

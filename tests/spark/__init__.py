"""The Spark adapters on static DataFrames and a Delta table in a directory of the test's own: no broker."""

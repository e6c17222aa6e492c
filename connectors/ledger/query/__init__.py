"""Queries of the tables, with DuckDB or with Spark."""

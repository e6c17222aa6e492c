"""Tests of `connectors.ledger.table`."""

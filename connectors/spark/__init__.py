"""The common part of all Spark jobs: the session, records as columns, the run of a query and its failures."""

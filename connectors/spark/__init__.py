"""What all Spark jobs share: the session, records as columns, how a query is run and fails."""

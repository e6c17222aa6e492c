"""Places for tables (a local directory, an object store, HDFS), and the login there."""

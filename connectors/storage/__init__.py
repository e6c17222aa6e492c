"""Where tables lie: a local directory, an object store, HDFS; and how to be let in there."""

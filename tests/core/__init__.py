"""Tests of `ordering` and of the record codec: no Spark, no Kafka, no clock."""

"""How to log in to a Kafka, in the words of each library, and why it refuses."""

"""Deliveries: the messages of a group, in one order or in all."""

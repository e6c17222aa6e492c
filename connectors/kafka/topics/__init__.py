"""The topics of a group: creation, purges, rights, settings, senders."""

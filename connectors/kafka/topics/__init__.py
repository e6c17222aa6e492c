"""The topics of a group: creating, purging, rights, settings, senders."""

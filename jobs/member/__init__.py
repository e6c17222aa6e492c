"""Commands that are a member of a group, besides `abcast publish` and `abcast deliver`."""

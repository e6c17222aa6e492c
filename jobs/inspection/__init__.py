"""The commands that read a group and change nothing."""

"""What looks at a group from outside: its check and its status."""

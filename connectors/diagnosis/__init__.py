"""Views of a group from outside: its check, its status, its dead letters, and the doctor."""

"""ISIS agreement between processes over TCP."""

"""ISIS agreement between processes over UDP."""

"""What carries DATA from site to site."""

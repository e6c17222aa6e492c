"""Tests on a broker that requires a password, and allows only granted operations."""

"""Encoders: what becomes of what was evicted."""

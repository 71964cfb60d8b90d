"""Eviction policies: what leaves when the budget is full."""

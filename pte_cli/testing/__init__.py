"""Checks that plugin authors run."""

"""Launchers: where the runs of a sweep are started."""

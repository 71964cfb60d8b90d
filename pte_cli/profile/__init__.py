"""Measuring what training costs."""

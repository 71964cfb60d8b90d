"""Measuring a model on held-out problems under a bounded cache."""

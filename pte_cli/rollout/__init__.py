"""Generating under a bounded cache: the cache, the attention that reads it, sampling, the engine, traces."""

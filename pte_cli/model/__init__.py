"""Models and what is added to them: loading, the adapter, RoPE."""

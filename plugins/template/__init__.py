"""What `pte plugins new` writes: one folder per kind, a working plugin each, and what they have in common."""

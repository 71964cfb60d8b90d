"""Tasks: problems with answers that can be checked."""

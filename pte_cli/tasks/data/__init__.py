"""The user's own data: read, checked and rendered before any weights are loaded."""

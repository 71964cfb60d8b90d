"""Numbers that both the early checks and the engine go by."""

MIN_WINDOW = 4
"""A prompt must leave room for at least this many thinking tokens in the budget."""

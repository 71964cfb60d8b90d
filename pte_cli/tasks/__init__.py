"""What every task needs: its streams of problems, and the way between its text and token ids."""

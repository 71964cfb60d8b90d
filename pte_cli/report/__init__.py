"""What the runs of a sweep say together: estimates, tables, pictures, one page."""

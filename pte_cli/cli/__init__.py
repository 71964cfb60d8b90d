"""The command line: parse, check, one call. Nothing else in the package imports it."""

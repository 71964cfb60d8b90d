"""Many runs from one file: which they are, in what order, on which slots, and what is left of them."""

"""Training: replaying traces with gradients, the losses, and the loop around them."""

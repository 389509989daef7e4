"""The operation: attend, its masks and biases, and the implementations behind it."""

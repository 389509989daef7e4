"""The lens: what to note of the weights, and what was seen."""

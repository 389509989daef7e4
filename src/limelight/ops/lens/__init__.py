"""The lens: what to record of the weights, and what was seen."""

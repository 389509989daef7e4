"""What attention means, measured: salience, roles of heads, causal effects, studies."""

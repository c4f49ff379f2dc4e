"""What servers ask: which answers fit, who gives them, and the question as anybody may see it."""

"""The questions of servers: which answers fit, who gives them, and the question as anybody may see it."""

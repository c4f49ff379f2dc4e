"""The questions of servers: their kinds, their answers, the host's callbacks, and the question in public."""

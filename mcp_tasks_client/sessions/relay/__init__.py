"""A message proxy between a host's session of the official SDK and its transport, by public names only."""

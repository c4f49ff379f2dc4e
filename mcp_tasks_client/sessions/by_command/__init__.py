"""A server by the command that starts it, in either version of the protocol."""

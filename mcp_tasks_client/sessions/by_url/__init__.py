"""A server by URL, in either version of the protocol."""

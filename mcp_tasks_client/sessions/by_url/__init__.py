"""A server by URL, in whichever version of the protocol the server speaks."""

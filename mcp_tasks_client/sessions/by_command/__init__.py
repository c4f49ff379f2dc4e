"""A server by the command that starts it, in whichever version of the protocol the server speaks."""

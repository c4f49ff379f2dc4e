"""Sessions: the ways of reaching a server that may answer with tasks."""

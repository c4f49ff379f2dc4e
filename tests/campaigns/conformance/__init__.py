"""The client scenarios of the MCP conformance harness, run against a client of ours."""

"""Real servers that the tests run in processes of their own."""

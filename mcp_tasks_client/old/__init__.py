"""Version 0.1 as it was, until the rebuilt house replaces it in one commit."""

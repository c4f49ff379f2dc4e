"""Ways of reaching a server. ``base`` is the contract."""

"""Parts that hosts put into their own clients, so that tools may become tasks."""

"""Bridges and hosts killed with SIGKILL at random moments, on one journal, whose models go on."""

"""The journal in a PostgreSQL database, which the processes of many hosts may share."""

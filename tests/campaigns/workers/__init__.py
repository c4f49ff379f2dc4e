"""Worker processes over one journal, killed with SIGKILL, whose tasks ask what other processes answer."""

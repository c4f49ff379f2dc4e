"""What the library does, in a dozen short tests. Read these first."""

"""The public test kit is tested like everything else."""

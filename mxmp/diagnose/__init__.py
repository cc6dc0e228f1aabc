"""What a machine can do, and where the precision of a network is lost."""

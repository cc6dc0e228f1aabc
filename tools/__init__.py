"""What the developers of mxmp run beside the package: environments, recordings."""

"""A DCGAN: two networks with a trainer each, and one loss scale for both."""

"""Image classification with Gluon and with the Symbolic API."""

"""Short programs that train real networks with mxmp; each runs as it is, from any folder."""

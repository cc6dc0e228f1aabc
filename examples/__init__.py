"""Short programs that train real networks with mxmp; each runs as it is, from any folder."""

import mxmp  # noqa: F401  # before the examples import MXNet, which needs it on a new numpy or Python

"""Networks of the mixed precision literature, each ``get_symbol(num_classes, **kwargs)``."""

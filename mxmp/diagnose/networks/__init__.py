"""Internal: networks of any front (nets, symbols with parameters, Modules), run in float32 and under any policy."""

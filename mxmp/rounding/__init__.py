"""Internal: two operators for MXNet on CPU that round float32 arrays to float16's grid, for emulated networks.

They are one C++ file, compiled on the user's machine, where a compiler is, and kept in the user's cache folder.

- `library` says whether they are there, and loads them.
- `build` compiles them in a process of its own.
- `trial` tries them out in another, before they take their place.
"""

from .library import available as available

"""Internal: two operators for MXNet on CPU that round float32 arrays to float16's grid, for emulated networks.

They are one C++ file, compiled on the user's machine, where a compiler is, and kept in the user's cache folder.

- `library` says whether they are there, and loads them.
- `build` compiles them and tries them out, in a process of its own.
"""

from .library import available as available

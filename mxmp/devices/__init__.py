"""Internal: what this machine can do, its processor and its GPUs.

- `processor` reads the processor's name and instruction sets.
- `amx` switches AMX on for MXNet, `after_import` when it is imported; `generated_code` sees whether it is in use.
- `bfloat16` tries whether MXNet runs bfloat16 on the processor; `speed` measures how fast, and warns where that is
  slower than float32; `speed_file` keeps what was measured.
- `machine` says what times hold for: processor, threads, AMX, MXNet's build.
- `fatbin` reads which GPUs MXNet's library has code for.
- `check` says what a policy means on each device.

Importing mxmp imports `processor` and `amx`, which do not import MXNet.
"""

"""Internal: what this machine can do, its processor and its GPUs.

- `processor` reads the processor's name and instruction sets; it alone does not import MXNet.
- `bfloat16` tries whether MXNet runs bfloat16 on the processor.
- `fatbin` reads which GPUs MXNet's library has code for.
- `check` says what a policy means on each device.
"""

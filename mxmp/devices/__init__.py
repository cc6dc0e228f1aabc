"""Internal: what this machine can do, its processor and its GPUs.

- `processor` reads the processor's name and flags.
- `amx` switches AMX on for MXNet, when the user asks for it.
- `check` says what a policy means on each device, and what bfloat16 means on the processor: by flags and a table of
  what the released wheels hold for GPUs. Nothing is measured.
- `speed` has the clock, for ``mxmp doctor``, and describes the machine.
"""

"""Internal: the abilities of this machine's processor and GPUs.

- `processor` reads the processor's name and flags.
- `amx` switches AMX on for MXNet, when the user asks for it.
- `check` tells whether a policy's dtype runs in hardware on each device. It reads the processor's flags, and has a
  table of the GPUs that the released wheels are for. Nothing is measured.
- `speed` has the clock, for ``mxmp doctor``, and describes the machine.
"""

"""Starts the processes of a distributed job on this machine, and ends them together.

MXNet's parameter server needs a scheduler, servers and workers, told apart by environment variables (DMLC_ROLE
and its like). MXNet's wheel has no launcher, and where a process dies the others wait for ever.

- `processes` lists what a job with MXNet's parameter server consists of.
- `job` runs it: prints what the processes print, and ends all when one fails or Ctrl-C is pressed.
- `saving` tells which workers are writing a checkpoint, so that Ctrl-C waits for them.
- `die_with_parent` is the script that each process runs under, so that none outlives the launcher.
"""

from .job import LAUNCHED as LAUNCHED
from .job import TIMED_OUT as TIMED_OUT
from .job import End as End
from .job import run as run
from .processes import LOOPBACK as LOOPBACK
from .processes import Process as Process
from .processes import free_ports as free_ports
from .processes import plan as plan

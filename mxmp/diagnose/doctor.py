"""Checks of this machine: versions, libraries, devices and settings that decide whether a policy runs in hardware."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import List, Mapping, NamedTuple, Optional, Tuple, Union

import mxnet as mx
import numpy as np

from .. import compat
from ..compat import site_file
from ..errors import DependencyError
from ..policy import Policy
from .devices import Finding, check_devices
from .environment import CPU, GPU, Setting, read_settings
from .fatbin import read_gpu_code
from .processor import BFLOAT16_FLAGS, read_processor

_INSTRUCTIONS = ("avx512bw", *BFLOAT16_FLAGS)  # MXNet runs bfloat16 from the first on
_FEATURES = {"CUDA": "CUDA", "CUDNN": "cuDNN", "NCCL": "NCCL", "MKLDNN": "oneDNN", "DIST_KVSTORE": "parameter server"}


class Check(NamedTuple):
    """One check of this machine.

    Attributes:
        what: What was checked.
        found: What was found.
        ok: False if it keeps the policy out of this machine's hardware, None if that is not known or a
            change is worth while.
        advice: What to do about it; empty if nothing.
    """

    what: str
    found: str
    ok: Optional[bool] = True
    advice: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Whether a policy runs in hardware on this machine, and all checks that tell.

    Attributes:
        policy: The policy, as text.
        dtype: Its compute dtype.
        devices: The devices that run it in hardware, or may for all that is known; empty if none does.
        checks: Everything that was looked at.
    """

    policy: str
    dtype: str
    devices: Tuple[str, ...]
    checks: Tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether a device runs the policy in hardware, or may for all that is known."""
        return bool(self.devices)

    def __str__(self) -> str:
        if self.ok:
            return f"{self.dtype} runs in hardware here: {', '.join(self.devices)}."
        return f"{self.dtype} does not run in hardware on this machine."


def examine(
    policy: Union[str, Policy] = "O1",
    library: Union[str, Path, None] = None,
    environ: Optional[Mapping[str, str]] = None,
) -> Diagnosis:
    """Return what keeps a policy from running in hardware on this machine, and what could run faster.

    Starts ``nvidia-smi`` if there is one, reads the headers of MXNet's library, and runs one convolution
    for a bfloat16 policy.

    Args:
        policy: A policy or its name; its ``compute_dtype`` counts.
        library: The libmxnet.so to read; the installed one unless given.
        environ: The environment variables; those of this process unless given.

    Raises:
        PolicyError: If the policy is not one.

    Example:
        >>> print(examine("O0"))  # doctest: +ELLIPSIS
        float32 runs in hardware here: ...
    """
    parsed = Policy.parse(policy)
    library = library or mx.libinfo.find_lib_path()[0]
    findings = check_devices(parsed, library)
    environ = os.environ if environ is None else environ
    settings = read_settings(environ, parsed.compute_dtype, set(map(_kind, findings)))
    checks = [
        Check("Python", platform.python_version()),  # these fit, or mxmp would not have been imported
        Check("numpy", np.__version__),
        _view(),
        _site(environ),
        _mxnet(library),
        _gpu_code(library),
        _instructions(),
        *_devices(findings),
        *(Check(*setting[:4]) for setting in settings),
    ]
    return Diagnosis(str(parsed), parsed.compute_dtype, _running(findings, settings), tuple(checks))


def _running(findings: List[Finding], settings: List[Setting]) -> Tuple[str, ...]:
    """Return the devices that run the policy for all that is known, and that no variable keeps from it."""
    closed = {setting.devices for setting in settings if setting.ok is False}
    return tuple(each.device for each in findings if each.ok is not False and _kind(each) not in closed)


def _kind(finding: Finding) -> str:
    return GPU if finding.device.startswith(GPU) else CPU


def _view() -> Check:
    if not compat.needed():
        return Check("view of numpy", "none; MXNet takes this Python and numpy as they are")
    if compat.installed():
        return Check("view of numpy", "MXNet has mxmp's, with the names that numpy has removed")
    return Check("view of numpy", "none, though MXNet needs one", None, "Import mxmp before MXNet.")


def _site(environ: Mapping[str, str]) -> Check:
    if site_file.is_outdated():
        return Check("mxmp site", "of another version of mxmp", None, "Run `mxmp site on` again.")
    if not site_file.is_on():
        return Check("mxmp site", "off: programs import mxmp before MXNet" if compat.needed() else "off")
    if environ.get(site_file.SWITCH) == "0":
        return Check("mxmp site", f"on, but {site_file.SWITCH}=0 is set", None, f"Unset {site_file.SWITCH}.")
    return Check("mxmp site", f"on: {site_file.path()}")


def _mxnet(library: Union[str, Path]) -> Check:
    features = mx.runtime.Features()
    built = [text for name, text in _FEATURES.items() if name in features and features.is_enabled(name)]
    return Check("MXNet", f"{mx.__version__} with {', '.join(built) or 'none of its options'}: {library}")


def _gpu_code(library: Union[str, Path]) -> Check:
    try:
        code = read_gpu_code(library)
    except DependencyError as e:
        return Check("GPU code", str(e), None, "On Linux, install MXNet again.")
    return Check("GPU code", str(code) if code.modules else f"{code}: this MXNet is for CPUs")


def _instructions() -> Check:
    flags = read_processor().flags
    if not flags:
        return Check("CPU flags", "unknown; this system does not list them", None)
    return Check("CPU flags", ", ".join(f"{flag}: {'yes' if flag in flags else 'no'}" for flag in _INSTRUCTIONS))


def _devices(findings: List[Finding]) -> List[Check]:
    checks = [Check(_kind(finding), finding.message, finding.ok, finding.advice) for finding in findings]
    return checks if any(check.what == GPU for check in checks) else [Check(GPU, "none"), *checks]

"""The environment under which a process records what it asks of a GPU."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Dict, Optional, Union

from mxmp.errors import DependencyError

from .build import LIBRARY

ROOT = Path(__file__).resolve().parent.parent.parent


def environment(
    folder: Union[str, Path],
    record: Union[str, Path],
    gpus: int = 1,
    compute_capability: int = 70,
    memory: int = 32 << 30,
    nvrtc: Union[str, Path, None] = None,
    **settings: object,
) -> Dict[str, str]:
    """Return the environment of a process that records, for ``subprocess.run(..., env=...)``.

    It is this process's own with the recorder before all other libraries, and with this project on PYTHONPATH.

    Args:
        folder: Where `build` put the recorder.
        record: The file to append to; its folder must be there.
        gpus: How many GPUs the process sees.
        compute_capability: Of each GPU: 70 is a V100, 75 a T4, 80 an A100.
        memory: Bytes of each GPU; an allocation beyond them fails as on a GPU.
        nvrtc: A real libnvrtc.so.11.2, which compiles fused operators; by default that of the package
            nvidia-cuda-nvrtc-cu11 of this Python. Without one every compilation succeeds unseen.
        **settings: Further variables in capitals, like ``MXNET_USE_FUSION=0``; others are a TypeError.

    Raises:
        DependencyError: If the recorder is not in the folder.
        FileNotFoundError: If the record's folder is missing.
    """
    folder, record = Path(folder).resolve(), Path(record).resolve()
    if not (folder / LIBRARY).is_file():
        raise DependencyError(f"{folder} holds no recorder; run: python -m tools.gpu_record.build {folder}")
    if not record.parent.is_dir():
        raise FileNotFoundError(f"the record {record} cannot be written: there is no folder {record.parent}")
    for name in settings:
        if name != name.upper():
            raise TypeError(f"environment() has no argument {name!r}; variables of the process are in capitals")
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH")))),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "GPU_RECORD": str(record),
        "GPU_RECORD_GPUS": str(gpus),
        "GPU_RECORD_COMPUTE_CAPABILITY": str(compute_capability),
        "GPU_RECORD_MEMORY": str(memory),
        "GPU_RECORD_NVRTC": str(nvrtc or find_nvrtc() or ""),
        **{name: str(value) for name, value in settings.items()},
    }


def find_nvrtc() -> Optional[Path]:
    """Return libnvrtc.so.11.2 of the package nvidia-cuda-nvrtc-cu11 of this Python, or None."""
    try:
        spec = find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        return None
    places = (spec.submodule_search_locations or ()) if spec else ()
    libraries = (Path(place) / "lib" / "libnvrtc.so.11.2" for place in places)
    return next((library for library in libraries if library.is_file()), None)

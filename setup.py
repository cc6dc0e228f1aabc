"""Packaging of mxmp. Reads the version as text and imports nothing of mxmp."""

import re
from pathlib import Path
from typing import List

from setuptools import find_packages, setup

HERE = Path(__file__).parent

PLOT = ["matplotlib>=3.5"]
# GluonCV and all that it requires leave MXNet to the user, so that no extra but 'cpu' pulls
# the CPU wheel: it would overwrite the files of mxnet-cu112. tests/test_setup.py holds this.
DEMO = [*PLOT, "scikit-learn>=1.0", "gluoncv>=0.10.5"]
# MXNet's exporter reads onnx.mapping, which onnx 1.19 removed. onnx 1.13 has no wheel for Python 3.12; there mxmp
# stands in for what later ones lack. onnxruntime loads what is written with any of them.
ONNX = ["onnx>=1.13,<1.14; python_version < '3.12'", "onnx>=1.16,<1.24; python_version >= '3.12'"]
# What records, without a GPU, what mxnet-cu112 asks of one (tools/gpu_record). NVRTC compiles fused operators there.
ELF = "pyelftools>=0.29"
GPU_RECORD = [ELF, "nvidia-cuda-nvrtc-cu11>=11.2; sys_platform == 'linux'"]
# Event files for TensorBoard. From 2.6.2 on it takes protobuf 3.20, which onnx 1.13 wants, and later ones.
TENSORBOARD = ["tensorboardX>=2.6.2"]
DOCS = [
    "furo>=2023.9.10",
    "myst-parser>=1.0",
    "ruff>=0.6",
    "sphinx>=6.0,<8",
    "sphinx-copybutton>=0.5",
    "sphinx-design>=0.5",
    "sphinx-gallery>=0.14",
]
TEST = [
    *DEMO,
    *ONNX,
    *TENSORBOARD,
    ELF,
    "hypothesis>=6.80",
    "ipykernel>=6.20",  # runs examples/tour.ipynb, by nbclient
    "mypy>=1.5",
    "nbclient>=0.8",
    "onnxruntime>=1.15",
    "openvino>=2024.4",  # the last for Python 3.8; a wheel of some 45 MB for each Python
    "pytest>=7.4",
    "pytest-timeout>=2.1",
    "pytest-xdist>=3.3",
    "ruff>=0.6",
    "selenium>=4.10",  # drives Chromium (tests/display), with no download of its own
    "setuptools>=64",  # tests/test_setup.py reads this file; environments of Python 3.12 and later come without it
]


def mxnet(wheel: str) -> List[str]:
    """Return the requirements of an extra that brings MXNet.

    Below Python 3.12 numpy is held at the versions that MXNet imports with by itself; on 3.12 MXNet's own pin, below 2,
    leaves numpy 1.26. No numpy below 2 has a wheel for Python 3.13: there the extra brings what MXNet requires beside
    numpy, and MXNet follows with ``pip install --no-deps``.
    """
    return [
        f"{wheel}==1.9.1; python_version < '3.13'",
        "numpy<1.24; python_version < '3.12'",
        "requests>=2.20,<3; python_version >= '3.13'",
        "graphviz>=0.8.1,<0.9; python_version >= '3.13'",
    ]


def read_version() -> str:
    """Return ``__version__`` of mxmp/__init__.py, without importing it."""
    text = (HERE / "mxmp" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise RuntimeError('mxmp/__init__.py: no line __version__ = "..."')
    return match.group(1)


setup(
    name="mxmp",
    version=read_version(),
    description="Mixed precision for Apache MXNet 1.9.1",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["mxmp", "mxmp.*"]),
    package_data={"mxmp": ["py.typed", "rounding/*.cc", "display/templates/*"]},
    python_requires=">=3.8,<3.14",
    install_requires=[
        "numpy>=1.21",
        "click>=8.1",  # command line
        "jinja2>=3.0",  # pages
        "rich>=12.0",  # tables and progress bars
    ],
    entry_points={"console_scripts": ["mxmp = mxmp.cli:main"]},
    extras_require={
        "cpu": mxnet("mxnet"),
        "cu112": mxnet("mxnet-cu112"),
        "onnx": ONNX,
        "plot": PLOT,
        "tensorboard": TENSORBOARD,
        "demo": DEMO,
        "docs": DOCS,
        "gpu-record": GPU_RECORD,
        "test": TEST,
    },
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.8",
        "Programming Language :: Python :: 3.9",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
    ],
)

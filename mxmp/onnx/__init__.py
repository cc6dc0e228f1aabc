"""Export to ONNX, by MXNet's exporter."""

from .export import export_model as export_model
from .rewrite import exportable as exportable

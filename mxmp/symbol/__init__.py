"""The Symbolic API: conversion of symbols, models and checkpoints."""

from ..names import hooks as _hooks
from .checkpoint import Checkpoint as Checkpoint
from .checkpoint import load_checkpoint as load_checkpoint
from .checkpoint import load_params as load_params
from .checkpoint import load_symbol as load_symbol
from .checkpoint import save_checkpoint as save_checkpoint
from .convert import ConvertedModel as ConvertedModel
from .convert import convert_checkpoint as convert_checkpoint
from .convert import convert_model as convert_model
from .convert import convert_symbol as convert_symbol
from .inference import from_graph as from_graph
from .inference import infer_facts as infer_facts
from .inference import to_graph as to_graph
from .rewrite import Converted as Converted
from .rewrite import convert_graph as convert_graph
from .rewrite import on_cpu as on_cpu

globals().update(_hooks(__name__))

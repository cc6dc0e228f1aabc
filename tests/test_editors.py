"""What an editor is told of a policy's fields, where a function takes them."""

import dataclasses
import inspect

import pytest

import mxmp
from mxmp import Policy
from mxmp.policy import PolicyChanges

FUNCTIONS = [
    *(Policy.parse, Policy.replace, mxmp.gluon.convert, mxmp.gluon.freeze),
    *(mxmp.symbol.convert_symbol, mxmp.symbol.convert_model, mxmp.symbol.convert_checkpoint),
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__qualname__)
def test_an_editor_is_told_the_fields_that_a_function_takes(function):
    assert inspect.signature(function).parameters["changes"].annotation == "Unpack[PolicyChanges]"
    assert set(PolicyChanges.__annotations__) == {field.name for field in dataclasses.fields(Policy) if field.compare}
    assert not PolicyChanges.__total__

"""What passes silently in torch, what becomes of it here, and which tests hold that.

Rows are as in `tests.behaviours.table`.
"""

from __future__ import annotations

from typing import Dict

from tests.behaviours.table import Row

MISUSE: Dict[str, Row] = {
    "the scale is updated between two optimizers' steps": Row(
        "refused between backward and step; the scale is fixed within an iteration",
        (
            "gluon/test_shared_loss_scale.py::test_an_update_between_backward_and_step_is_refused",
            "gluon/test_shared_loss_scale.py::test_the_scale_is_fixed_within_an_iteration",
            "gluon/test_shared_loss_scale.py::test_a_second_step_needs_an_update",
        ),
    ),
    "the scale changes inside an accumulation window": Row(
        "refused; the window keeps its scale",
        (
            "gluon/test_accumulation.py::test_in_mid_window_nothing_is_saved_or_loaded[setting loss_scale]",
            "gluon/test_trainer_misuse.py::test_misuse_is_an_error_and_changes_nothing[setting loss_scale]",
            "amp/test_contrib_amp_defects.py::test_gradients_of_two_scales_are_never_added",
        ),
    ),
    "backward after unscale": Row(
        "noticed at the next call, by the parameter's name",
        ("gluon/test_trainer_misuse.py::test_misuse_is_an_error_and_changes_nothing[backward after unscale]",),
    ),
    "unscale twice": Row(
        "refused",
        ("gluon/test_trainer_misuse.py::test_misuse_is_an_error_and_changes_nothing[unscale twice]",),
    ),
    "an interval is set below the tracker": Row(
        "refused",
        (
            "loss_scale/test_dynamic.py::test_dynamic_refuses[growth_tracker=10 has passed growth_interval=10]",
            "loss_scale/test_values.py::test_from_dict_refuses[growth_tracker=7 has passed growth_interval=5]",
        ),
    ),
    "a scale that is not positive and finite": Row(
        "refused",
        (
            "loss_scale/test_dynamic.py::test_dynamic_refuses[init_scale=nan]",
            "loss_scale/test_values.py::test_static_refuses_what_is_no_factor",
            "gluon/test_trainer.py::test_a_wrong_loss_scale_is_refused",
        ),
    ),
    "backoff outside (0, 1)": Row(
        "refused",
        ("loss_scale/test_dynamic.py::test_dynamic_refuses[backoff_factor=0.0]",),
    ),
    "growth_interval 0": Row(
        "refused",
        ("loss_scale/test_dynamic.py::test_dynamic_refuses[growth_interval=0; expected a whole number of at least 1]",),
    ),
    "a NaN in a loaded state": Row(
        "refused, and nothing is loaded",
        (
            "loss_scale/test_values.py::test_from_dict_refuses[value=nan is no loss scale]",
            "gluon/test_trainer_states.py::test_a_damaged_scaler_loads_nothing",
        ),
    ),
}

"""What the test suites of other libraries assert about loss scaling and casting, and which tests hold it here.

Rows 1 to 23 are torch's (GradScaler and autocast), 24 to 32 Apex's, 33 to 40 Keras', the others those of
DeepSpeed, jmp, optax and fastai. All of them mean something on MXNet; where a part of one does not, its
line says why. Tests are named as pytest names them, below this folder's parent; ``[text]`` behind a name
means its parameter sets with this text in them. `test_table.py` checks that all of them are there.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Tuple


class Row(NamedTuple):
    """One behaviour and the tests that hold it."""

    line: str
    tests: Tuple[str, ...]


BEHAVIOURS: Dict[int, Row] = {
    1: Row(
        "unscaling finds an inf or NaN in any tensor, views included (an NDArray has no other strides)",
        (
            "optimizer/test_finite.py::test_all_finite_finds_one_bad_value_anywhere",
            "optimizer/test_finite.py::test_all_finite_mixes_dtypes_and_contexts",
            "gluon/test_trainer.py::test_mixed_dtypes_are_checked_together",
            "behaviours/test_scaling.py::test_views_are_checked_and_what_lies_beside_them_is_not",
        ),
    ),
    2: Row(
        "sparse gradients are checked, with duplicates that overflow when they are summed",
        (
            "optimizer/test_finite.py::test_all_finite_finds_duplicates_that_overflow_when_summed",
            "gluon/test_trainer.py::test_row_sparse_gradients_are_checked_and_unscaled",
        ),
    ),
    3: Row(
        "the scale grows after N steps and backs off; a back-off resets the tracker",
        (
            "loss_scale/test_dynamic.py::test_dynamic_follows_the_table",
            "gluon/test_trainer.py::test_the_scale_grows_after_the_interval",
            "gluon/test_trainer.py::test_a_new_scale_takes_effect_at_the_next_step",
        ),
    ),
    4: Row(
        "scaling a loss keeps nested containers",
        ("gluon/test_trainer_scale_loss.py::test_scale_loss_keeps_containers",),
    ),
    5: Row(
        "a state loads before and after the first use",
        (
            "gluon/test_trainer_states.py::test_states_can_be_saved_and_loaded_before_the_first_step",
            "behaviours/test_scaling.py::test_a_state_replaces_all_that_a_trainer_has",
        ),
    ),
    6: Row(
        "training equals float32's while the scaler is pickled at every iteration",
        (
            "behaviours/test_scaling.py::test_training_is_gluons_while_all_is_saved_and_loaded_at_every_step",
            "gluon/test_trainer.py::test_training_in_float32_is_that_of_gluon_bit_for_bit",
        ),
    ),
    7: Row(
        "the scale is exactly init * growth**u * backoff**s; without scaling the loop is as it was",
        (
            "loss_scale/test_dynamic.py::test_dynamic_is_init_times_powers_of_the_factors",
            "gluon/test_trainer.py::test_without_a_loss_scale_the_loop_of_gluon_is_unchanged",
        ),
    ),
    8: Row(
        "the scale never overflows",
        (
            "loss_scale/test_dynamic.py::test_dynamic_keeps_to_bounds_and_factors",
            "loss_scale/test_dynamic.py::test_dynamic_refuses[max_scale]",
            "loss_scale/test_dynamic.py::test_dynamic_never_leaves_its_bounds_in_a_hundred_thousand_steps",
        ),
    ),
    9: Row(
        "clipping at any scale is clipping of the true gradients",
        ("gluon/test_trainer_gradients.py::test_clip_global_norm_is_that_of_gluon_at_any_scale",),
    ),
    10: Row(
        "clipping after unscaling gradients with an inf still skips",
        (
            "gluon/test_trainer_gradients.py::test_clip_global_norm_of_bad_gradients_skips",
            "gluon/test_trainer_gradients.py::test_an_inf_before_unscale_skips_even_if_it_was_clipped_away",
        ),
    ),
    11: Row(
        "a gradient penalty is scaled right",
        (
            "gluon/test_trainer_scale_loss.py::test_gradient_penalty",
            "gluon/test_gradient_penalty.py::test_training_equals_the_float32_net_bit_for_bit",
            "gluon/test_gradient_penalty.py::test_the_gradient_of_the_penalty_is_that_of_differences",
        ),
    ),
    12: Row(
        "gradients accumulate at one scale, are unscaled once, and equal the sum",
        (
            "gluon/test_accumulation.py::test_a_window_steps_with_the_sum_of_its_backwards",
            "gluon/test_accumulation.py::test_sums_of_a_deeper_net_are_those_of_single_backwards",
            "gluon/test_accumulation.py::test_one_overflow_among_the_backwards_skips_the_window",
            "gluon/test_trainer_scale_loss.py::test_windows_accumulate_at_one_scale",
        ),
    ),
    13: Row(
        "two models, two optimizers, two losses: one skips, the other steps, a shared scale backs off once",
        (
            "gluon/test_shared_loss_scale.py::test_one_trainer_skips_and_the_other_steps",
            "gluon/test_shared_loss_scale.py::test_the_scale_moves_once_per_iteration",
            "gluon/test_trainer_scale_loss.py::test_one_of_two_trainers_can_skip_alone",
            "gluon/test_trainer_scale_loss.py::test_two_models_with_two_losses_in_two_open_blocks",
        ),
    ),
    14: Row(
        "gradients changed between unscaling and the step are what the step uses",
        (
            "gluon/test_trainer_gradients.py::test_step_uses_gradients_changed_after_unscale",
            "gluon/test_trainer_gradients.py::test_an_inf_made_after_unscale_skips",
        ),
    ),
    15: Row(
        "a step returns whether it was skipped",
        ("gluon/test_trainer.py::test_step_says_whether_it_updated",),
    ),
    16: Row(
        "an inf on one context or worker makes all of them skip",
        (
            "gluon/test_trainer_contexts.py::test_one_bad_gradient_on_one_context_skips_all_of_them",
            "distributed/test_dist_sync.py::test_workers_train_alike",
            "distributed/test_trainer.py::test_a_loss_that_is_lost_on_one_worker_stops_all_alike",
        ),
    ),
    17: Row(
        "an operator gives the dtype and the bits of operands cast by hand",
        (
            "behaviours/test_casting.py::test_an_operator_gives_the_bits_of_operands_cast_by_hand",
            "passes/test_emulate.py::test_elementwise_operators_are_bit_exact",
            "passes/test_emulate.py::test_convolution_and_its_gradients",
        ),
    ),
    18: Row(
        "what cannot run in low precision is refused by name",
        (
            "passes/test_classify.py::test_impossible_override_is_an_error_that_names_the_node",
            "rules/test_ports.py::test_mxnet_refuses_low_precision_where_the_rule_has_none",
        ),
    ),
    19: Row(
        "float64 and integers are left alone",
        (
            "symbol/test_convert_symbol.py::test_a_float64_branch_gives_what_it_gave",
            "symbol/test_convert_symbol.py::test_an_integer_branch_gives_what_it_gave",
            "symbol/test_conversion.py::test_float64_and_integer_branches_are_left_alone",
        ),
    ),
    20: Row(
        "custom operators read and give float32, unless the user's own casts give them another dtype",
        (
            "symbol/test_convert_symbol.py::test_a_custom_operator_reads_and_gives_float32",
            "symbol/test_convert_symbol.py::test_a_custom_operator_runs",
            "passes/test_emulate_graph.py::test_an_operator_without_rule_runs_in_float16_itself",
        ),
    ),
    21: Row(
        "recurrent layers of every kind and layout",
        (
            "behaviours/test_casting.py::test_recurrent_layers_of_every_layout_run_on_float16_operands",
            "amp/test_convert.py::test_rnn_layers",
        ),
    ),
    22: Row(
        "casts made under inference do not leak into training, nor old weights into inference",
        (
            "behaviours/test_casting.py::test_inference_before_and_between_training_steps_changes_no_gradient",
            "behaviours/test_casting.py::test_inference_sees_a_weight_that_changed",
        ),
    ),
    23: Row(
        "a weight is cast once per step, however often it is read",
        (
            "symbol/test_properties.py::test_a_tensor_used_several_times_has_one_cast",
            "passes/test_place.py::test_a_shared_tensor_is_cast_once",
        ),
    ),
    24: Row(
        "the class of an operator decides the dtype of its output; a gradient has the dtype of its input",
        (
            "behaviours/test_casting.py::test_the_class_of_an_operator_decides_the_dtype_of_its_output",
            "behaviours/test_casting.py::test_a_gradient_has_the_dtype_of_what_it_is_the_gradient_of",
        ),
    ),
    25: Row(
        "operands of several dtypes are promoted to the widest",
        (
            "behaviours/test_casting.py::test_an_operator_gives_the_bits_of_operands_cast_by_hand[infer: the widest operand decides]",
            "symbol/test_properties.py::test_deny_carries_through_infer_operators",
        ),
    ),
    26: Row(
        "train, eval, train: the gradients are right",
        (
            "behaviours/test_casting.py::test_inference_before_and_between_training_steps_changes_no_gradient",
            "gluon/test_convert.py::test_training_and_inference_alternate",
        ),
    ),
    27: Row(
        "a resumed run goes on exactly, at every level",
        (
            "behaviours/test_resume.py::test_a_run_stopped_and_resumed_is_bit_identical",
            "gluon/test_trainer_states.py::test_a_run_resumed_at_every_step_is_bit_identical",
            "module/test_checkpoints.py::test_a_run_resumed_at_every_step_is_bit_identical",
        ),
    ),
    28: Row(
        "saved parameters are float32 and still train",
        (
            "gluon/test_saved_parameters.py::test_a_net_that_was_never_trained_is_saved_as_it_was",
            "gluon/test_saved_parameters.py::test_what_is_saved_are_the_masters",
            "gluon/test_saved_parameters.py::test_training_goes_on_from_what_was_saved_bit_for_bit",
        ),
    ),
    29: Row(
        "scales of several losses are independent",
        (
            "amp/test_trainers.py::test_losses_in_turn_have_scales_of_their_own",
            "amp/test_trainers.py::test_the_loss_that_overflows_backs_off",
        ),
    ),
    30: Row(
        "an inf by dtype, iteration and loss costs that loss that step",
        ("behaviours/test_scaling.py::test_an_overflow_costs_its_own_loss_that_step_and_the_other_none",),
    ),
    31: Row(
        "parameters added in mid-training are trained like the others",
        ("gluon/test_trainer_add_params.py::test_an_added_parameter_trains_like_one_of_a_new_trainer",),
    ),
    32: Row(
        "hysteresis under fuzz, and never below the floor",
        (
            "loss_scale/test_dynamic.py::test_dynamic_never_leaves_its_bounds_in_a_hundred_thousand_steps",
            "loss_scale/test_dynamic.py::test_dynamic_matches_megatron",
            "loss_scale/test_dynamic.py::test_dynamic_follows_the_table",
        ),
    ),
    33: Row(
        "an infinite step changes nothing but the scale; down, up, and the count of iterations",
        (
            "optimizer/test_every_optimizer.py::test_a_skipped_step_leaves_every_bit",
            "optimizer/test_loss_scale_optimizer.py::test_an_infinite_step_is_skipped_and_halves_the_scale",
            "optimizer/test_loss_scale_optimizer.py::test_the_scale_doubles_after_its_growth_steps",
            "optimizer/test_loss_scale_optimizer.py::test_a_skipped_step_leaves_no_trace",
        ),
    ),
    34: Row(
        "wrong optimizer arguments are named in the error",
        (
            "optimizer/test_multi_precision.py::test_wrapping_something_else_is_refused",
            "optimizer/test_loss_scale_optimizer.py::test_wrong_arguments_are_named",
            "optimizer/test_loss_scale_optimizer.py::test_what_is_no_optimizer_is_named",
        ),
    ),
    35: Row(
        "forgetting to scale or to unscale is an error that names the call",
        (
            "gluon/test_trainer_misuse.py::test_misuse_is_an_error_and_changes_nothing[without scaling]",
            "optimizer/test_loss_scale_optimizer.py::test_forgetting_to_scale_is_named",
            "optimizer/test_loss_scale_optimizer.py::test_forgetting_to_unscale_is_named",
        ),
    ),
    36: Row(
        "clipping: an inf still skips",
        (
            "gluon/test_trainer_gradients.py::test_clip_global_norm_of_bad_gradients_skips",
            "module/test_training.py::test_clipping_gradients_that_are_not_finite_skips_the_step",
            "optimizer/test_loss_scale_optimizer.py::test_an_inf_that_is_clipped_still_skips",
        ),
    ),
    37: Row(
        "a NaN on one replica only makes all skip, and is named",
        (
            "gluon/test_trainer_contexts.py::test_one_bad_gradient_on_one_context_skips_all_of_them",
            "gluon/test_trainer_contexts.py::test_a_nan_that_stays_on_one_context_is_named",
            "optimizer/test_loss_scale_optimizer.py::test_a_nan_on_one_context_skips_all",
        ),
    ),
    38: Row(
        "wrapping twice is refused",
        (
            "optimizer/test_multi_precision.py::test_wrapping_twice_is_refused",
            "optimizer/test_loss_scale_optimizer.py::test_wrapping_twice_is_refused",
        ),
    ),
    39: Row(
        "policies nest",
        (
            "gluon/test_precision.py::test_regions_nest_and_the_innermost_decides",
            "gluon/test_set_policy.py::test_a_block_in_float32_takes_the_blocks_in_it_along",
            "gluon/test_set_policy.py::test_the_innermost_policy_wins",
        ),
    ),
    40: Row(
        "what each device makes of a policy is said by its name",
        (
            "diagnose/test_devices.py::test_check_devices_judges_every_card_and_the_processor",
            "diagnose/test_devices.py::test_the_message_names_the_card_and_the_reason",
        ),
    ),
    41: Row(
        "a custom minimum is kept, through a file too",
        (
            "loss_scale/test_dynamic.py::test_dynamic_keeps_to_bounds_and_factors",
            "loss_scale/test_values.py::test_every_field_survives_a_dict",
            "gluon/test_trainer_states.py::test_load_states_brings_the_scaler_back",
        ),
    ),
    42: Row(
        "all steps overflow, and some do",
        (
            "loss_scale/test_dynamic.py::test_dynamic_follows_the_table",
            "loss_scale/test_dynamic.py::test_dynamic_gives_up_after_the_chosen_number_of_steps_at_the_floor_whatever_its_options",
            "gluon/test_trainer.py::test_the_floor_raises_with_the_name_of_the_first_bad_parameter",
            "gluon/test_trainer.py::test_a_float16_gradient_overflows_by_itself_until_the_scale_fits",
        ),
    ),
    43: Row(
        "skips are counted in a row and in all",
        ("gluon/test_trainer.py::test_counters_of_skipped_steps",),
    ),
    44: Row(
        "targets, labels and indices are untouched",
        (
            "passes/test_insert_casts.py::test_integers_and_labels_are_never_cast",
            "passes/test_insert_casts.py::test_float_indices_are_never_cast",
            "gluon/test_convert.py::test_indices_are_never_cast",
        ),
    ),
    45: Row(
        "every operator stands in exactly one list",
        (
            "rules/test_registry.py::test_every_registered_operator_has_a_rule_or_a_reason",
            "rules/test_registry.py::test_reasons_do_not_overlap",
            "amp/test_operators.py::test_every_operator_stands_in_one_list",
        ),
    ),
}

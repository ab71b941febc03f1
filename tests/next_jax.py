"""What differs with JAX's next implementation of custom rules, and why.

JAX has it behind the flags jax_custom_vjp3, jax_custom_jvp3 and jax_remat3. With all of
them on, the tests of laws, Functions and decorated functions pass, but for these.
"""

from __future__ import annotations

import jax

FLAGS = ("jax_custom_vjp3", "jax_custom_jvp3", "jax_remat3")
IS_ON = all(getattr(jax.config, flag, False) for flag in FLAGS)

EFFECTS = "laws/test_effects.py::test_a_rule_has_the_effects_of_a_plain_one"
DIFFERENCES = {
    "JAX traces the function for an eager gradient too, so that it gets no values": (
        "laws/test_losses.py::test_a_forward_that_needs_values_is_differentiated_twice",
        "laws/test_losses.py::test_the_second_derivative_of_a_saved_numpy_value",
        "laws/test_losses.py::test_a_mark_that_may_mean_two_outputs_is_refused",
        "laws/test_losses.py::test_a_detached_array_that_can_not_be_told_apart",
        "laws/test_losses.py::test_an_array_of_objects_is_looked_into",
        "laws/test_losses.py::test_a_setup_context_that_needs_values_is_not_run_again",
        "laws/test_losses.py::test_what_needs_values_has_no_second_derivative",
        "laws/test_losses.py::test_integers_have_values_all_the_same",
        "laws/test_in_use.py::test_a_body_that_needs_values_refuses_a_second",
        "function/test_detached.py::test_a_body_that_needs_values_has_a_second",
        "function/test_errors.py::test_a_tracer_hidden_on_ctx",
        "decorator/test_decorator_examples.py::test_python_control_flow_on_values",
    ),
    "so forward runs once more": (
        "function/test_python_numbers.py::test_rules_see_an_array_of_the_number",
        "laws/test_contexts.py::test_a_rule_runs_in_the_contexts_of_its_caller[jit of",
        "laws/test_contexts.py::test_an_exception_differs",
    ),
    "JAX shows another definition in a jaxpr": (
        "function/test_first_mistakes.py::test_jaxprs_show_the_names_of_rules",
        "laws/test_every_order.py::test_jaxpr_shows",
        "decorator/test_decorator.py::test_one_kind_of_rule_shows_jax_own_definition",
        "decorator/test_derived_jvp.py::test_the_jaxpr_has_no_custom_vjp",
        "decorator/test_jax_own.py::test_a_jaxpr_and_an_error_have_the_names",
    ),
    "JAX says otherwise which arguments and cotangents are zero": (
        "laws/test_flags.py::test_flags_marks_and_integers_in_reverse_mode[False-",
        "laws/test_flags.py::test_flags_marks_and_integers_in_forward_mode[True-",
        "decorator/test_decorator.py::test_symbolic_zeros_tell_what_is_perturbed",
    ),
    "JAX can't lower what a batch rule in a branch closes over": (
        "decorator/test_batch_rules.py::test_so_may_one_that_is_made_in_the_body_of",
    ),
    "JAX loses the effect of a checkify check in a batch rule": (
        f"{EFFECTS}[jit of scan: check: value of vmap of decorator none vmap, in vmap",
    ),
    "JAX refuses in other words": (
        "laws/test_effects.py::test_jax_refuses",
        "function/test_closures.py::test_nor_is_that_of_a_hidden_one[checkpoint",
        "decorator/test_jax_own.py::test_it_takes_declared_static_values_only",
        "decorator/test_jax_own.py::test_a_closed_over_tangent_is_refused_as_by_jax",
        "decorator/test_jax_own.py::test_defremat_alone_wants_the_flag_that_jax_wants",
    ),
}
"""For each reason, the beginnings of the names of tests in `tests/`."""


def difference(name: str) -> str | None:
    """Return why the test of this name differs, or None."""
    name = name.removeprefix("tests/")
    for reason, beginnings in DIFFERENCES.items():
        if IS_ON and name.startswith(beginnings):
            return reason
    return None

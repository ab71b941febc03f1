"""A whole model with Liger's Triton kernels, beside the same model without them."""

from __future__ import annotations

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np

from tests.gpu.parts import Check, Figure, SkipError, expect, figure


def checks(small: bool) -> dict[str, Check]:
    """One check: the loss, and the gradient of each parameter."""
    return {"Llama with Liger's kernels": functools.partial(_llama, small)}


def _llama(small: bool) -> Figure:
    for package in ("transformers", "liger_kernel"):
        if importlib.util.find_spec(package) is None:
            raise SkipError(f"needs {package}")
    import torch
    from liger_kernel.transformers import apply_liger_kernel_to_llama
    from transformers import LlamaConfig, LlamaForCausalLM

    from jaxfn.torch import from_torch

    width, layers = (16, 1) if small else (256, 4)
    config = LlamaConfig(
        vocab_size=2 * width,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        use_cache=False,
    )
    ids = jnp.asarray(
        np.random.default_rng(0).integers(2 * width, size=(2, width // 2))
    )

    def loss_and_gradients() -> tuple[jax.Array, dict[str, jax.Array]]:
        torch.manual_seed(0)
        model = from_torch(LlamaForCausalLM(config))
        loss = lambda params: model.apply(params, ids, labels=ids).loss  # noqa: E731
        return jax.jit(jax.value_and_grad(loss))(model.params)

    plain, expected = loss_and_gradients()
    apply_liger_kernel_to_llama()  # in this process alone
    value, found = loss_and_gradients()
    if set(found) != set(expected):
        raise AssertionError("the two models have other parameters")
    size = max(float(jnp.abs(x).max()) for x in expected.values())
    worst = max(float(jnp.abs(found[k] - expected[k]).max()) for k in expected) / size
    # Both compute in float32, and on a GPU matrices are multiplied in TensorFloat-32.
    most = 1e-5 if small else 1e-3
    return figure(
        loss=expect("loss", abs(float(value) / float(plain) - 1), most),
        gradients=expect("gradients", worst, most),
    )

"""Places in numpyro."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import infer, optim
from numpyro.contrib.control_flow import scan
from numpyro.infer import autoguide

from .catalogue import KEY, X, row


def model_of(f):
    def model(data=X):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("f", f(x))
        numpyro.sample("data", dist.Normal(x, 1.0), obs=data)

    return model


def sampled(kernel, *, warmup=3, samples=5, chains=1, **options):
    mcmc = infer.MCMC(
        kernel,
        num_warmup=warmup,
        num_samples=samples,
        num_chains=chains,
        chain_method="vectorized" if chains > 1 else "sequential",
        progress_bar=False,
    )
    mcmc.run(KEY, **options)
    return mcmc


@row("numpyro", "`NUTS`")
def _(f):
    kernel = infer.NUTS(model_of(f), max_tree_depth=3)
    return sampled(kernel).get_samples()["x"]


@row("numpyro", "`NUTS` with `forward_mode_differentiation`", forward=True)
def _(f):
    kernel = infer.NUTS(
        model_of(f), forward_mode_differentiation=True, max_tree_depth=3
    )
    return sampled(kernel).get_samples()["x"]


@row("numpyro", "`HMC` with vectorised chains", batched=True)
def _(f):
    kernel = infer.HMC(
        potential_fn=lambda x: x**2 + f(x),
        step_size=0.2,
        trajectory_length=0.4,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    )
    fields = {"init_params": X, "extra_fields": ("potential_energy",)}
    mcmc = sampled(kernel, warmup=0, samples=3, chains=2, **fields)
    return mcmc.get_samples(), mcmc.get_extra_fields()["potential_energy"]


def fitted(f, guide, optimizer, steps):
    svi = infer.SVI(model_of(f), guide, optimizer, infer.Trace_ELBO())
    return svi.run(KEY, steps, progress_bar=False).params


@row("numpyro", "`SVI` with `AutoNormal`")
def _(f):
    return fitted(f, autoguide.AutoNormal(model_of(f)), optim.Adam(0.1), 3)


@row("numpyro", "`AutoLaplaceApproximation`, its precision by `hessian`")
def _(f):
    guide = autoguide.AutoLaplaceApproximation(model_of(f))
    found = fitted(f, guide, optim.SGD(0.1), 2)
    return guide.get_posterior(found).precision_matrix


@row("numpyro", "`log_density` of several draws", batched=True)
def _(f):
    def slope(x):
        joint = lambda x: infer.util.log_density(model_of(f), (), {}, {"x": x})[0]  # noqa: E731
        return jax.value_and_grad(joint)(x)

    return jax.vmap(slope)(X)


@row("numpyro", "`contrib.control_flow.scan` in a model")
def _(f):
    def model():
        def step(x, _):
            x = numpyro.sample("x", dist.Normal(f(x), 1.0))
            return x, x

        scan(step, 0.5, None, length=2)

    potential = lambda x: infer.util.log_density(model, (), {}, {"x": x})[0]  # noqa: E731
    return jax.jit(jax.grad(potential))(X)


@row("numpyro", "a distribution transformed by it")
def _(f):
    class Wave(dist.transforms.Transform):
        domain = codomain = dist.constraints.real

        def __call__(self, x):
            return 2 * x + f(x)

        def _inverse(self, y):
            return y

        def log_abs_det_jacobian(self, x, y, intermediates=None):
            return jnp.log(jnp.abs(2 + jax.vmap(jax.grad(f))(x)))

    normal = dist.TransformedDistribution(dist.Normal(jnp.zeros(2), 1.0), Wave())
    return jax.grad(lambda x: normal.log_prob(x).sum())(X)

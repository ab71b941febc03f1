"""What networks are made of."""

from jaxfn.torch._translate._names._row import Bound
from jaxfn.torch._translate._names._table import table


def _pad(given: Bound) -> str | None:
    """Torch's list begins at the last axis; JAX's widths at the first."""
    sizes, ndim = given.elements("pad"), given.ndim("x")
    if sizes is None or ndim is None or len(sizes) % 2:
        return None
    widths = ["(0, 0)"] * ndim
    for i in range(len(sizes) // 2):
        widths[ndim - 1 - i] = f"({sizes[2 * i]}, {sizes[2 * i + 1]})"
    value = ", constant_values=value" if given.has("value") else ""
    return f"jnp.pad(x, ({', '.join(widths)},){value})"


ROWS = table(
    """
relu               x                             jax.nn.relu(x)
selu               x                             jax.nn.selu(x)
celu               x alpha?                      jax.nn.celu(x, alpha)
F.relu             x inplace==False              jax.nn.relu(x)
F.relu             x                             jax.nn.relu(x)
F.relu6            x                             jax.nn.relu6(x)
F.celu             x alpha?                      jax.nn.celu(x, alpha)
F.elu              x alpha?                      jax.nn.elu(x, alpha)
F.gelu             x approximate=="tanh"         jax.nn.gelu(x)
F.gelu             x                             jax.nn.gelu(x, approximate=False)
F.hardsigmoid      x                             jax.nn.hard_sigmoid(x)
F.hardswish        x                             jax.nn.hard_swish(x)
F.hardtanh         x min_val?=-1.0 max_val?=1.0  jnp.clip(x, min_val, max_val)
F.leaky_relu       x negative_slope?             jax.nn.leaky_relu(x, negative_slope)
F.logsigmoid       x                             jax.nn.log_sigmoid(x)
F.mish             x                             jax.nn.mish(x)
F.selu             x                             jax.nn.selu(x)
F.sigmoid          x                             jax.nn.sigmoid(x)
F.silu             x                             jax.nn.silu(x)
F.softplus         x                             jax.nn.softplus(x)
F.softsign         x                             jax.nn.soft_sign(x)
F.tanh             x                             jnp.tanh(x)
F.tanhshrink       x                             x - jnp.tanh(x)
F.threshold        x threshold value             jnp.where(x > threshold, x, value)
F.softshrink       x lambd?=0.5                  jnp.sign(x) * jnp.maximum(jnp.abs(x) - lambd, 0)
F.hardshrink       x lambd?=0.5                  jnp.where(jnp.abs(x) > lambd, x, 0)
""",
    locals(),
    elementwise=True,
) + table(
    """
softmax            x dim                         jax.nn.softmax(x, axis=dim)
log_softmax        x dim                         jax.nn.log_softmax(x, axis=dim)
special.softmax    x dim                         jax.nn.softmax(x, axis=dim)
special.log_softmax x dim                        jax.nn.log_softmax(x, axis=dim)
F.softmax          x dim                         jax.nn.softmax(x, axis=dim)
F.softmin          x dim                         jax.nn.softmax(-x, axis=dim)
F.log_softmax      x dim                         jax.nn.log_softmax(x, axis=dim)
F.softmax          x dim -dtype                   jax.nn.softmax(x.astype(dtype), axis=dim)
F.log_softmax      x dim -dtype                   jax.nn.log_softmax(x.astype(dtype), axis=dim)
F.glu              x dim?                        jax.nn.glu(x, axis=dim)
F.embedding        x weight                      weight[x]
F.one_hot          x num_classes                 jax.nn.one_hot(x, num_classes, dtype=int)
F.l1_loss          x target                      jnp.mean(jnp.abs(x - target))
F.l1_loss          x target reduction=="none"    jnp.abs(x - target)
F.l1_loss          x target reduction=="sum"     jnp.sum(jnp.abs(x - target))
F.mse_loss         x target                      jnp.mean((x - target) ** 2)
F.mse_loss         x target reduction=="none"    (x - target) ** 2
F.mse_loss         x target reduction=="sum"     jnp.sum((x - target) ** 2)
F.linear           x weight                      x @ weight.T
F.linear           x weight bias==None           x @ weight.T
F.linear           x weight bias:tensor          x @ weight.T + bias
F.normalize        x                             x / jnp.maximum(jnp.linalg.norm(x, axis=1, keepdims=True), 1e-12)
F.normalize        x dim                         x / jnp.maximum(jnp.linalg.norm(x, axis=dim, keepdims=True), 1e-12)
F.pad x pad mode=="constant" value?  @_pad
F.pad              x pad -value?                 @_pad
""",
    locals(),
)

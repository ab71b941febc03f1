"""Elementwise operations, and those of neural networks."""

import functools

from jaxfn.torch._translate.syntax import code
from jaxfn.torch._translate.table.row import BoundCall, table


def _truncated(given: BoundCall) -> str | None:
    """The quotient of integers is an integer."""
    dtype = given.result.dtype
    if dtype is None:
        return None
    is_int = "int" in dtype
    return "jnp.trunc(x / other)" + (".astype(x.dtype)" if is_int else "")


def _masked_fill(given: BoundCall) -> str:
    """The array keeps its dtype, whatever value fills it."""
    number = given["value"].fact.kind in ("int", "float")
    floating = "float" in (given["x"].fact.dtype or "float")
    cast = "" if number and floating else ".astype(x.dtype)"
    return f"jnp.where(mask, value, x){cast}"


ROWS = table(
    """
abs|arccos|arcsin|arctan|angle|ceil|conj|cos|cosh|deg2rad x  jnp.NAME(x)
exp|exp2|expm1|floor|isfinite|isinf|isnan|isneginf|isposinf x  jnp.NAME(x)
isreal|log|log10|log1p|log2|logical_not|rad2deg|round|sign x  jnp.NAME(x)
signbit|sin|sinc|sinh|sqrt|square|tan|tanh|trunc x  jnp.NAME(x)
special.exp2|special.expm1|special.log1p x       jnp.NAME(x)
absolute           x                             jnp.abs(x)
acos               x                             jnp.arccos(x)
acosh              x                             jnp.arccosh(x)
asin               x                             jnp.arcsin(x)
asinh              x                             jnp.arcsinh(x)
atan               x                             jnp.arctan(x)
atan2              x other                       jnp.arctan2(x, other)
arctan2|copysign|fmax|fmin|fmod|hypot|logaddexp|logaddexp2 x other  jnp.NAME(x, other)
logical_and|logical_or|logical_xor|maximum|minimum|nextafter x other  jnp.NAME(x, other)
remainder          x other                       jnp.remainder(x, other)
atanh              x                             jnp.arctanh(x)
add                x other                       x + other
add                x other -alpha                x + alpha * other
addcdiv            x tensor1 tensor2             x + tensor1 / tensor2
addcdiv            x tensor1 tensor2 -value      x + value * tensor1 / tensor2
addcmul            x tensor1 tensor2             x + tensor1 * tensor2
addcmul            x tensor1 tensor2 -value      x + value * tensor1 * tensor2
bitwise_and        x other                       x & other
bitwise_not        x                             ~x
bitwise_or         x other                       x | other
bitwise_xor        x other                       x ^ other
bitwise_left_shift x other                       x << other
bitwise_right_shift x other                      x >> other
clamp              x min? max?                   jnp.clip(x, min=min, max=max)
clip               x min? max?                   jnp.clip(x, min=min, max=max)
clamp_max          x max                         jnp.minimum(x, max)
clamp_min          x min                         jnp.maximum(x, min)
conj_physical      x                             jnp.conj(x)
resolve_conj|positive x                          x
digamma|special.digamma x                        jax.scipy.special.digamma(x)
div|divide|true_divide x other                   x / other
div                x other -rounding_mode==None  x / other
div                x other -rounding_mode=="floor"  jnp.floor_divide(x, other)
div                x other -rounding_mode=="trunc"  @_truncated
eq                 x other                       x == other
erf|special.erf    x                             jax.scipy.special.erf(x)
erfc|special.erfc  x                             jax.scipy.special.erfc(x)
erfinv|special.erfinv x                          jax.scipy.special.erfinv(x)
fix                x                             jnp.trunc(x)
floor_divide       x other                       x // other
frac               x                             x - jnp.trunc(x)
ge|greater_equal   x other                       x >= other
greater|gt         x other                       x > other
heaviside          x values                      jnp.heaviside(x, values)
isclose            x other rtol? atol? equal_nan?  jnp.isclose(x, other, rtol=rtol, atol=atol, equal_nan=equal_nan)
ldexp              x other                       x * 2.0**other
le|less_equal      x other                       x <= other
lerp               x end weight                  x + weight * (end - x)
less|lt            x other                       x < other
lgamma|special.gammaln x                         jax.scipy.special.gammaln(x)
logit              x eps==None                   jax.scipy.special.logit(x)
logit|special.logit x                            jax.scipy.special.logit(x)
mul|multiply       x other                       x * other
nan_to_num         x nan? posinf? neginf?        jnp.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)
ne|not_equal       x other                       x != other
neg|negative       x                             -x
pow                x exponent                    x**exponent
reciprocal         x                             1 / x
round              x decimals                    jnp.round(x, decimals)
rsqrt              x                             jax.lax.rsqrt(x)
rsub               x other                       other - x
sgn                x                             jnp.sign(x)
sigmoid|special.expit x                          jax.nn.sigmoid(x)
sub|subtract       x other                       x - other
sub                x other -alpha                x - alpha * other
xlogy|special.xlogy x other                      jax.scipy.special.xlogy(x, other)
special.entr       x                             jax.scipy.special.entr(x)
special.i0|i0      x                             jax.scipy.special.i0(x)
special.i0e        x                             jax.scipy.special.i0e(x)
special.i1         x                             jax.scipy.special.i1(x)
special.i1e        x                             jax.scipy.special.i1e(x)
special.log_ndtr   x                             jax.scipy.special.log_ndtr(x)
special.ndtr       x                             jax.scipy.special.ndtr(x)
special.ndtri      x                             jax.scipy.special.ndtri(x)
special.xlog1py    x other                       jax.scipy.special.xlog1py(x, other)
special.zeta       x other                       jax.scipy.special.zeta(x, other)
polar              x angle                       x * jnp.exp(1j * angle)
complex            real imag                     jax.lax.complex(real, imag)
torch.where        condition:tensor x other      jnp.where(condition, x, other)
masked_fill        x mask value                  @_masked_fill
.where             x condition other             jnp.where(condition, x, other)
""",
    locals(),
    elementwise=True,
)


def _pad(given: BoundCall) -> str | None:
    """Torch's list begins at the last axis; JAX's widths at the first."""
    sizes, ndim = given.elements("pad"), given["x"].fact.ndim
    if sizes is None or len(sizes) % 2:
        return None
    last = [f"({a}, {b})" for a, b in zip(sizes[::2], sizes[1::2], strict=True)][::-1]
    if ndim in (None, 1):  # JAX takes one pair for all axes
        widths = f"[*[(0, 0)] * (x.ndim - {len(last)}), {', '.join(last)}]"
    else:
        none = ["(0, 0)"] * (ndim - len(last))
        widths = f"({', '.join([*none, *last])},)"
    value = ", constant_values=value" if "value" in given else ""
    return f"jnp.pad(x, {widths}{value})"


def _picked(given: BoundCall) -> str | None:
    """Return the entries of the classes of a batch."""
    logs = "x" if given.row.name == "F.nll_loss" else "jax.nn.log_softmax(x, axis=1)"
    plain = given["x"].fact.ndim == 2 and given["target"].fact.ndim == 1
    return f"jnp.take_along_axis({logs}, target[:, None], axis=1)" if plain else None


def _layer_norm(given: BoundCall) -> str | None:
    """Normalize over the last axis only: several would take a second line."""
    is_last = len(given.elements("normalized_shape") or ()) == 1
    return "jax.nn.standardize(x, axis=-1, epsilon=eps)" if is_last else None


def _each(given: BoundCall, name: str) -> str | None:
    """Return the text of a list, or of one number for all axes."""
    kind, n = given[name].fact.kind, given.row.name[-2]
    one = f"[{name}] * {n}"
    return {"seq": name, "int": one, "none": one}.get(kind)


_strides = functools.partial(_each, name="stride")
_paddings = functools.partial(_each, name="padding")
_dilations = functools.partial(_each, name="dilation")


def _bias(given: BoundCall) -> str | None:
    """Return what is added; refuse another number of axes than the name has."""
    n, kind = int(given.row.name[-2]), given["bias"].fact.kind
    if given["x"].fact.ndim not in (None, n + 2) or kind not in ("tensor", "none"):
        return None
    if code(given["bias"].value) == "None":
        return ""
    bias = f"bias[:, {', '.join(['None'] * n)}]"
    return f" + {bias}" if kind == "tensor" else f" + (0 if bias is None else {bias})"


def _flipped(given: BoundCall) -> str:
    return f"jnp.flip(weight, {tuple(range(2, 2 + int(given.row.name[-2])))})"


ROWS += table(
    """
relu               x                             jax.nn.relu(x)
selu|F.selu        x                             jax.nn.selu(x)
celu|F.celu        x alpha?                      jax.nn.celu(x, alpha)
F.relu             x inplace==False              jax.nn.relu(x)
F.relu             x                             jax.nn.relu(x)
F.relu6            x                             jax.nn.relu6(x)
F.elu              x alpha?                      jax.nn.elu(x, alpha)
F.gelu             x approximate=="tanh"         jax.nn.gelu(x)
F.gelu             x                             jax.nn.gelu(x, approximate=False)
F.hardsigmoid      x                             jax.nn.hard_sigmoid(x)
F.hardswish        x                             jax.nn.hard_swish(x)
F.hardtanh         x min_val?=-1.0 max_val?=1.0  jnp.clip(x, min_val, max_val)
F.leaky_relu       x negative_slope?             jax.nn.leaky_relu(x, negative_slope)
F.logsigmoid       x                             jax.nn.log_sigmoid(x)
F.mish             x                             jax.nn.mish(x)
F.sigmoid          x                             jax.nn.sigmoid(x)
F.silu             x                             jax.nn.silu(x)
F.softplus         x                             jax.nn.softplus(x)
F.softplus         x beta                        jax.nn.softplus(beta * x) / beta
F.softplus         x beta threshold              jnp.where(beta * x > threshold, x, jax.nn.softplus(beta * x) / beta)
F.softsign         x                             jax.nn.soft_sign(x)
F.tanh             x                             jnp.tanh(x)
F.tanhshrink       x                             x - jnp.tanh(x)
F.threshold        x threshold value             jnp.where(x <= threshold, value, x)
F.softshrink       x lambd?=0.5                  jnp.sign(x) * jnp.maximum(jnp.abs(x) - lambd, 0)
F.hardshrink       x lambd?=0.5                  jnp.where(jnp.abs(x) <= lambd, 0, x)
""",
    locals(),
    elementwise=True,
) + table(
    """
softmax|special.softmax|F.softmax x dim          jax.nn.softmax(x, axis=dim)
log_softmax|special.log_softmax|F.log_softmax x dim  jax.nn.log_softmax(x, axis=dim)
F.softmin          x dim                         jax.nn.softmax(-x, axis=dim)
F.softmax          x dim -dtype                  jax.nn.softmax(x.astype(dtype), axis=dim)
F.log_softmax      x dim -dtype                  jax.nn.log_softmax(x.astype(dtype), axis=dim)
F.layer_norm       x normalized_shape -eps?=1e-05  @_layer_norm
F.nll_loss|F.cross_entropy x target              -jnp.mean(@_picked, where=target[:, None] != -100)
F.nll_loss|F.cross_entropy x target -reduction=="mean"  -jnp.mean(@_picked, where=target[:, None] != -100)
F.nll_loss|F.cross_entropy x target -reduction=="sum"  -jnp.sum(@_picked, where=target[:, None] != -100)
F.nll_loss|F.cross_entropy x target -reduction=="none"  jnp.where(target == -100, 0, -@_picked[:, 0])
F.glu              x dim?                        jax.nn.glu(x, axis=dim)
F.embedding        x weight                      weight[x]
F.one_hot          x num_classes                 jax.nn.one_hot(x, num_classes, dtype=int)
F.l1_loss          x target                      jnp.mean(jnp.abs(x - target))
F.l1_loss          x target reduction=="none"    jnp.abs(x - target)
F.l1_loss          x target reduction=="sum"     jnp.sum(jnp.abs(x - target))
F.mse_loss         x target                      jnp.mean((x - target) ** 2)
F.mse_loss         x target reduction=="none"    (x - target) ** 2
F.mse_loss         x target reduction=="sum"     jnp.sum((x - target) ** 2)
F.smooth_l1_loss   x target                      jnp.mean(jnp.where(jnp.abs(x - target) < 1, 0.5 * (x - target) ** 2, jnp.abs(x - target) - 0.5))
F.binary_cross_entropy_with_logits x target      jnp.mean(jax.nn.softplus(x) - x * target)
F.binary_cross_entropy_with_logits x target -reduction=="mean"  jnp.mean(jax.nn.softplus(x) - x * target)
F.binary_cross_entropy_with_logits x target -reduction=="sum"  jnp.sum(jax.nn.softplus(x) - x * target)
F.binary_cross_entropy_with_logits x target -reduction=="none"  jax.nn.softplus(x) - x * target
F.conv1d|F.conv2d|F.conv3d x weight bias? stride?=1 padding?=0 dilation groups?  jax.lax.conv_general_dilated(x, weight, @_strides, [(p, p) for p in @_paddings], rhs_dilation=@_dilations, feature_group_count=groups)@_bias
F.conv1d|F.conv2d|F.conv3d x weight bias? stride?=1 padding?=0 -groups?  jax.lax.conv_general_dilated(x, weight, @_strides, [(p, p) for p in @_paddings], feature_group_count=groups)@_bias
F.conv_transpose1d|F.conv_transpose2d|F.conv_transpose3d x weight bias? stride?=1 padding?=0 output_padding==0  jax.lax.conv_general_dilated(x, @_flipped.swapaxes(0, 1), [1] * (x.ndim - 2), [(k - 1 - p, k - 1 - p) for k, p in zip(weight.shape[2:], @_paddings)], lhs_dilation=@_strides)@_bias
F.conv_transpose1d|F.conv_transpose2d|F.conv_transpose3d x weight bias? stride?=1 padding?=0  jax.lax.conv_general_dilated(x, @_flipped.swapaxes(0, 1), [1] * (x.ndim - 2), [(k - 1 - p, k - 1 - p) for k, p in zip(weight.shape[2:], @_paddings)], lhs_dilation=@_strides)@_bias
F.conv_transpose1d|F.conv_transpose2d|F.conv_transpose3d x weight bias? stride?=1 padding?=0 output_padding==0 groups  jax.lax.conv_general_dilated(x, @_flipped.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(-1, weight.shape[0] // groups, *weight.shape[2:]), [1] * (x.ndim - 2), [(k - 1 - p, k - 1 - p) for k, p in zip(weight.shape[2:], @_paddings)], lhs_dilation=@_strides, feature_group_count=groups)@_bias
F.conv_transpose1d|F.conv_transpose2d|F.conv_transpose3d x weight bias? stride?=1 padding?=0 -groups  jax.lax.conv_general_dilated(x, @_flipped.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(-1, weight.shape[0] // groups, *weight.shape[2:]), [1] * (x.ndim - 2), [(k - 1 - p, k - 1 - p) for k, p in zip(weight.shape[2:], @_paddings)], lhs_dilation=@_strides, feature_group_count=groups)@_bias
F.linear           x weight                      x @ weight.T
F.linear           x weight bias==None           x @ weight.T
F.linear           x weight bias:none            x @ weight.T + (0 if bias is None else bias)
F.linear           x weight bias:tensor          x @ weight.T + bias
F.normalize        x -dim?=1                     x / jnp.maximum(jnp.linalg.norm(x, axis=dim, keepdims=True), 1e-12)
F.normalize        x -dim?=1 -eps                x / jnp.maximum(jnp.linalg.norm(x, axis=dim, keepdims=True), eps)
F.normalize        x p==2 -dim?=1                x / jnp.maximum(jnp.linalg.norm(x, axis=dim, keepdims=True), 1e-12)
F.normalize        x p==2.0 -dim?=1              x / jnp.maximum(jnp.linalg.norm(x, axis=dim, keepdims=True), 1e-12)
F.pad              x pad mode=="constant" value?  @_pad
F.pad              x pad -value?                 @_pad
""",
    locals(),
)

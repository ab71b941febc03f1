"""Elementwise operations."""

from jaxfn.torch._translate.table.columns import table
from jaxfn.torch._translate.table.row import BoundCall


def _truncated(given: BoundCall) -> str | None:
    """The quotient of integers is an integer."""
    dtype = given.result_dtype()
    if dtype is None:
        return None
    is_int = "int" in dtype
    return "jnp.trunc(x / other)" + (".astype(x.dtype)" if is_int else "")


def _masked_fill(given: BoundCall) -> str:
    """The array keeps its dtype, whatever value fills it."""
    number = given.kind("value") in ("int", "float")
    floating = "float" in (given.dtype("x") or "float")
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

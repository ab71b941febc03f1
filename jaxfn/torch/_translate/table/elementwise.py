"""Element by element."""

from jaxfn.torch._translate.table.columns import table
from jaxfn.torch._translate.table.row import BoundCall


def _truncated(given: BoundCall) -> str | None:
    """Of integers it is one."""
    dtype = given.result_dtype()
    if dtype is None:
        return None
    is_int = "int" in dtype
    return "jnp.trunc(x / other)" + (".astype(x.dtype)" if is_int else "")


def _masked_fill(given: BoundCall) -> str:
    """The dtype of the array stays, whatever is filled in."""
    number = given.kind("value") in ("int", "float")
    floating = "float" in (given.dtype("x") or "float")
    cast = "" if number and floating else ".astype(x.dtype)"
    return f"jnp.where(mask, value, x){cast}"


ROWS = table(
    """
abs                x                             jnp.abs(x)
absolute           x                             jnp.abs(x)
acos               x                             jnp.arccos(x)
arccos             x                             jnp.arccos(x)
acosh              x                             jnp.arccosh(x)
asin               x                             jnp.arcsin(x)
arcsin             x                             jnp.arcsin(x)
asinh              x                             jnp.arcsinh(x)
atan               x                             jnp.arctan(x)
arctan             x                             jnp.arctan(x)
atan2              x other                       jnp.arctan2(x, other)
arctan2            x other                       jnp.arctan2(x, other)
atanh              x                             jnp.arctanh(x)
add                x other                       x + other
add                x other -alpha                 x + alpha * other
addcdiv            x tensor1 tensor2             x + tensor1 / tensor2
addcdiv            x tensor1 tensor2 -value       x + value * tensor1 / tensor2
addcmul            x tensor1 tensor2             x + tensor1 * tensor2
addcmul            x tensor1 tensor2 -value       x + value * tensor1 * tensor2
angle              x                             jnp.angle(x)
bitwise_and        x other                       x & other
bitwise_not        x                             ~x
bitwise_or         x other                       x | other
bitwise_xor        x other                       x ^ other
bitwise_left_shift x other                       x << other
bitwise_right_shift x other                      x >> other
ceil               x                             jnp.ceil(x)
clamp              x min? max?                   jnp.clip(x, min=min, max=max)
clip               x min? max?                   jnp.clip(x, min=min, max=max)
clamp_max          x max                         jnp.minimum(x, max)
clamp_min          x min                         jnp.maximum(x, min)
conj               x                             jnp.conj(x)
conj_physical      x                             jnp.conj(x)
resolve_conj       x                             x
copysign           x other                       jnp.copysign(x, other)
cos                x                             jnp.cos(x)
cosh               x                             jnp.cosh(x)
deg2rad            x                             jnp.deg2rad(x)
digamma            x                             jax.scipy.special.digamma(x)
div                x other                       x / other
div                x other -rounding_mode==None   x / other
div x other -rounding_mode=="floor"  jnp.floor_divide(x, other)
div x other -rounding_mode=="trunc"  @_truncated
divide             x other                       x / other
eq                 x other                       x == other
erf                x                             jax.scipy.special.erf(x)
erfc               x                             jax.scipy.special.erfc(x)
erfinv             x                             jax.scipy.special.erfinv(x)
exp                x                             jnp.exp(x)
exp2               x                             jnp.exp2(x)
expm1              x                             jnp.expm1(x)
fix                x                             jnp.trunc(x)
floor              x                             jnp.floor(x)
floor_divide       x other                       x // other
fmax               x other                       jnp.fmax(x, other)
fmin               x other                       jnp.fmin(x, other)
fmod               x other                       jnp.fmod(x, other)
frac               x                             x - jnp.trunc(x)
ge                 x other                       x >= other
greater            x other                       x > other
greater_equal      x other                       x >= other
gt                 x other                       x > other
heaviside          x values                      jnp.heaviside(x, values)
hypot              x other                       jnp.hypot(x, other)
isclose x other rtol? atol? equal_nan?  jnp.isclose(x, other, rtol=rtol, atol=atol, equal_nan=equal_nan)
isfinite           x                             jnp.isfinite(x)
isinf              x                             jnp.isinf(x)
isnan              x                             jnp.isnan(x)
isneginf           x                             jnp.isneginf(x)
isposinf           x                             jnp.isposinf(x)
isreal             x                             jnp.isreal(x)
ldexp              x other                       x * 2.0**other
le                 x other                       x <= other
lerp               x end weight                  x + weight * (end - x)
less               x other                       x < other
less_equal         x other                       x <= other
lgamma             x                             jax.scipy.special.gammaln(x)
log                x                             jnp.log(x)
log10              x                             jnp.log10(x)
log1p              x                             jnp.log1p(x)
log2               x                             jnp.log2(x)
logaddexp          x other                       jnp.logaddexp(x, other)
logaddexp2         x other                       jnp.logaddexp2(x, other)
logical_and        x other                       jnp.logical_and(x, other)
logical_not        x                             jnp.logical_not(x)
logical_or         x other                       jnp.logical_or(x, other)
logical_xor        x other                       jnp.logical_xor(x, other)
logit              x eps==None                   jax.scipy.special.logit(x)
logit              x                             jax.scipy.special.logit(x)
lt                 x other                       x < other
maximum            x other                       jnp.maximum(x, other)
minimum            x other                       jnp.minimum(x, other)
mul                x other                       x * other
multiply           x other                       x * other
nan_to_num         x nan? posinf? neginf?        jnp.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)
ne                 x other                       x != other
neg                x                             -x
negative           x                             -x
nextafter          x other                       jnp.nextafter(x, other)
not_equal          x other                       x != other
positive           x                             x
pow                x exponent                    x**exponent
rad2deg            x                             jnp.rad2deg(x)
reciprocal         x                             1 / x
remainder          x other                       jnp.remainder(x, other)
round              x                             jnp.round(x)
round              x decimals                    jnp.round(x, decimals)
rsqrt              x                             jax.lax.rsqrt(x)
rsub               x other                       other - x
sgn                x                             jnp.sign(x)
sigmoid            x                             jax.nn.sigmoid(x)
sign               x                             jnp.sign(x)
signbit            x                             jnp.signbit(x)
sin                x                             jnp.sin(x)
sinc               x                             jnp.sinc(x)
sinh               x                             jnp.sinh(x)
sqrt               x                             jnp.sqrt(x)
square             x                             jnp.square(x)
sub                x other                       x - other
sub                x other -alpha                 x - alpha * other
subtract           x other                       x - other
tan                x                             jnp.tan(x)
tanh               x                             jnp.tanh(x)
true_divide        x other                       x / other
trunc              x                             jnp.trunc(x)
xlogy              x other                       jax.scipy.special.xlogy(x, other)
special.digamma    x                             jax.scipy.special.digamma(x)
special.entr       x                             jax.scipy.special.entr(x)
special.erf        x                             jax.scipy.special.erf(x)
special.erfc       x                             jax.scipy.special.erfc(x)
special.erfcx      x                             jnp.exp(x**2) * jax.scipy.special.erfc(x)
special.erfinv     x                             jax.scipy.special.erfinv(x)
special.exp2       x                             jnp.exp2(x)
special.expit      x                             jax.nn.sigmoid(x)
special.expm1      x                             jnp.expm1(x)
special.gammaln    x                             jax.scipy.special.gammaln(x)
special.i0         x                             jax.scipy.special.i0(x)
special.i0e        x                             jax.scipy.special.i0e(x)
special.i1         x                             jax.scipy.special.i1(x)
special.i1e        x                             jax.scipy.special.i1e(x)
special.log1p      x                             jnp.log1p(x)
special.log_ndtr   x                             jax.scipy.special.log_ndtr(x)
special.logit      x                             jax.scipy.special.logit(x)
special.ndtr       x                             jax.scipy.special.ndtr(x)
special.ndtri      x                             jax.scipy.special.ndtri(x)
special.xlog1py    x other                       jax.scipy.special.xlog1py(x, other)
special.xlogy      x other                       jax.scipy.special.xlogy(x, other)
special.zeta       x other                       jax.scipy.special.zeta(x, other)
i0                 x                             jax.scipy.special.i0(x)
polar              x angle                       x * jnp.exp(1j * angle)
complex            real imag                     jax.lax.complex(real, imag)
torch.where        condition:tensor x other      jnp.where(condition, x, other)
masked_fill        x mask value                  @_masked_fill
.where             x condition other             jnp.where(condition, x, other)
""",
    locals(),
    elementwise=True,
)

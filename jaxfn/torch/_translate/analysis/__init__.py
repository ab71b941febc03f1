"""What the rewriter has to know beyond single expressions.

`infer` guesses the type of expressions that no run has reached. `masks` plans
`jnp.where`.
"""

from jaxfn.torch._translate.analysis.infer import Inference, widens
from jaxfn.torch._translate.analysis.masks import Masks

"""The new text of a unit.

`Rewriter` is one LibCST transformer in layers, from the bottom up: `base` (notes and
marks), `references` (names), `calls`, and `rewriter` (statements). `statements` and
`assignments` turn writes into new bindings, `heads` translates decorators and
annotations, `devices` removes devices.
"""

from jaxfn.torch._translate.rewrite.base import Untranslated
from jaxfn.torch._translate.rewrite.devices import without_devices
from jaxfn.torch._translate.rewrite.rewriter import Rewriter

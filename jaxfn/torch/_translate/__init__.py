"""Torch Functions as source text for JAX.

The order of work, each step with its modules::

    collect the class and all that it uses          # units; files finds their text
    run the original, instrumented                  # runs
        each expression shows its type              # observed
        each write shows who shares its memory      # memory
    visit each definition once                      # rewriter; below it, in layers,
                                                    #   statements, assignments, calls,
                                                    #   references, base
        guess the types that no run has shown       # infer
        look up the names of torch                  # table
        write the line in JAX's terms, or mark it
    make one file of the parts, and compare it      # port

`translation` is what users call, and `api` goes through the steps. Only `syntax`
imports LibCST, at the first call. `names` finds what code reads and binds.
"""

from jaxfn.torch._translate.translation import Translation, translate, translated

__all__ = ["Translation", "translate", "translated"]

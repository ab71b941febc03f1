"""Functions inside of other libraries, beside hand-written definitions in their place.

`definitions` has one function with rules that are wrong on purpose, defined in each
way; `rows_*` are places in libraries; `catalogue` runs each with every definition;
`page` writes what comes out into tests/ecosystem/results.md:

    python -m tests.ecosystem

The tests run all cells and compare them with what the page says.
"""

"""The README and the pages in `notebooks/`: what they say holds, and what scripts make.

`api` writes notebooks/reference/api.md from docstrings, `pictures` draws the pictures,
and `words` finds sentences that are hard to read. After a change, make both anew:

    python -m tests.pages.api
    python -m tests.pages.pictures
"""

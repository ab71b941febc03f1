"""Warnings and messages of the libraries themselves are not ours."""

import logging

LIBRARIES = [
    # The library is no longer maintained, and says so when it is imported.
    "ignore:JAXopt is no longer maintained:DeprecationWarning",
]


def pytest_configure(config):
    for line in LIBRARIES:
        config.addinivalue_line("filterwarnings", line)
    # It logs what it raises too, with the whole traceback, for each refused cell.
    logging.getLogger("folx").setLevel(logging.CRITICAL)

"""The checks, by subject; `runner.CHECKS` lists them all."""

"""Advice on errors that a rule raised; imported when the first rule raises."""

from jaxfn._advice.rules import better, near_member

__all__ = ["better", "near_member"]

"""Topics in Spark: a data source and a sink of Arrow batches, and the pipelines declared on them."""

from .registration import RegistrationError, register

__all__ = ["RegistrationError", "register"]

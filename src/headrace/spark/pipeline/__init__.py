"""Declared pipelines: tables made of topics, steps in SQL and Python, and sinks, run as Spark's streaming queries."""

from .authoring import Pipeline

__all__ = ["Pipeline"]

"""What is wrong with a broker, and what to do about it: plain values, the same for logs, metrics, HTTP and the CLI."""

from .problem import HealthProblem, ProblemCode, Severity, problem
from .report import HealthReport, ListenerReport, NotAReport

__all__ = ["HealthProblem", "HealthReport", "ListenerReport", "NotAReport", "ProblemCode", "Severity", "problem"]

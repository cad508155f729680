from tests.support.cli import cluster, headrace, run

__all__ = ["cluster", "headrace", "run"]

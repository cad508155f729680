"""`headrace pipeline`."""

from . import archive as archive
from . import backfill, deployments, service, testing
from . import lake as lake
from .commands import app

testing.register(app)
backfill.register(app)
deployments.register(app)
service.register(app)

__all__ = ["app"]

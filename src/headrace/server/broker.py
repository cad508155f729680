"""The broker process: puts the parts together, starts them in order, stops them in the reverse order.

Start: lock the data directory, open the store, load the metadata, open the logs, listen.
Stop: listen no more, answer what was asked, bring every log to rest, close the store, unlock.
"""

import asyncio
import gc
import random
import resource
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog
import uvloop

from headrace.cluster.controller import Controller
from headrace.cluster.image import BrokerNode, ClusterImage
from headrace.cluster.sqlite import SqliteStore
from headrace.config import BrokerConfig
from headrace.net.clock import Clock, SystemClock
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.disk import Disk, RealDisk
from headrace.storage.flusher import Flusher
from headrace.storage.manager import LogManager

from . import handlers
from .authentication import Authenticator
from .context import Context
from .dispatch import Dispatcher
from .handlers.fetch import FetchHandler
from .handlers.fetch_sessions import FetchSessions
from .handlers.produce import ProduceHandler
from .listener import Listener
from .housekeeping import Housekeeping

DRAIN_SECONDS: Final = 10.0
_SYNC_THREADS: Final = 1
_RESERVED_FILES: Final = 256

log = structlog.get_logger(__name__)

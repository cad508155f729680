"""What a broker comes to lead, told to every coordinator whose state may be in it."""

from headrace.replication.partition import Partition
from headrace.replication.replica_manager import Leadership


class Coordinators:
    """Implements `Leadership` for several."""

    def __init__(self, *coordinators: Leadership) -> None:
        self._coordinators = coordinators

    def leads(self, partition: Partition) -> None:
        """This broker has come to lead a partition."""
        for coordinator in self._coordinators:
            coordinator.leads(partition)

    def leads_no_more(self, partition: Partition) -> None:
        """Another broker leads it now, or nobody."""
        for coordinator in self._coordinators:
            coordinator.leads_no_more(partition)

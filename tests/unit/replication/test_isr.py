"""What becomes of AlterPartition requests whose answers do not come."""

import asyncio
from collections.abc import Sequence

from headrace.cluster.alter_partition import AlterPartitionResult
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.isr import IsrChange, IsrKeeper
from headrace.testing.loop import run_virtual
from tests.support.links import FOLLOWER, LEADER, Pair, append


def test_a_request_is_repeated_for_the_registration_that_had_caught_up() -> None:
    """The follower has come anew since, and lost what it had: it is not the one that was meant."""
    asked: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    async def main() -> None:
        pair = Pair()
        pair.elect(1, (LEADER,))
        leader = pair.leaders[0]
        append(leader, b"acknowledged")
        pair.exchange()
        assert leader.followers is not None
        follower = leader.followers.get(FOLLOWER)
        assert follower is not None
        assert pair.proposed, "the follower has everything"

        repeated = asyncio.Event()

        async def alter(_: int, changes: Sequence[IsrChange]) -> list[AlterPartitionResult]:
            asked.extend((change.isr, change.broker_epochs) for change in changes)
            if len(asked) > 1:
                repeated.set()
                return [CodedError(ErrorCode.ineligible_replica)]
            follower.fetched(0, leader.log.log_end_offset, broker_epoch=2, now=pair.clock.monotonic())
            raise ConnectionResetError

        keeper = IsrKeeper(alter, lambda *_: None, lambda: 7, pair.clock.monotonic)
        keeper.propose(leader, pair.proposed[-1])
        running = asyncio.ensure_future(keeper.run())
        await repeated.wait()
        running.cancel()

    run_virtual(main, 1, longest=60)
    assert asked == [((LEADER, FOLLOWER), (7, 1))] * 2

"""Where two logs part: decided by leader epochs, never by high watermarks."""

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.fetch import EpochEnd
from headrace.storage.log import Log


def diverging_at(log: Log, offset: int, last_fetched_epoch: int, unknown: ErrorCode) -> EpochEnd | None:
    """Where the log of someone who stands at an offset parts from this one; None where it does not.

    Raises `CodedError` with the given code for an epoch that nothing is known of.
    """
    if last_fetched_epoch < 0:
        return None
    epoch, end_offset = log.end_offset_for_epoch(last_fetched_epoch)
    if epoch < 0:
        raise CodedError(unknown, f"nothing is known of leader epoch {last_fetched_epoch}")
    if epoch < last_fetched_epoch or end_offset < offset:
        return EpochEnd(epoch, end_offset)
    return None


def agreed_end(log: Log, leader: EpochEnd) -> int:
    """Where a follower's log is to be cut, when its leader says where their epochs part.

    Where the leader's epoch is unknown here the end of the one before it is as far as we can agree, and the next fetch
    asks again from there.
    """
    epoch, own_end = log.end_offset_for_epoch(leader.epoch) if leader.epoch >= 0 else (-1, -1)
    if epoch < 0:
        return leader.end_offset
    return min(leader.end_offset, own_end) if epoch == leader.epoch else own_end

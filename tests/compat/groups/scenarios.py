"""What happens to a group of three over 12 partitions. A scenario returns what is to be told of it, or raises.

Records keep coming all the while; at the end of each, all of them were processed and the logs are checked.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..model import NotOffered
from ..records import PARTITIONS
from .feed import Feed
from .member import Member, Place
from .trial import Trial, given_up

_MEMBERS = 3
_GROWN = 16
_MORE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScenario:
    """A row of the table of groups; `slug` is its part of the topics' names."""

    title: str
    slug: str
    run: Callable[[Trial], str]


def _three(trial: Trial, places: Sequence[Place], assignor: str = "") -> list[Member]:
    topics = sorted({topic for topic, _ in places})
    members = [trial.start(topics=topics, assignor=assignor) for _ in range(_MEMBERS)]
    trial.settled(members, places)
    return members


def _finish(trial: Trial, feed: Feed) -> None:
    produced = feed.finish()
    trial.processed(produced)
    trial.check(produced)


def _count(members: Sequence[Member], since: int) -> int:
    return sum(len(event.places) for event in given_up(members, since))


def killed_and_joined(trial: Trial) -> str:
    """The others take over from a killed member; a new one gets its share. Tells what the join made them give up."""
    places = trial.topic("shared", PARTITIONS)
    with trial.feed(places) as feed:
        *others, victim = _three(trial, places)
        victim.kill()
        trial.balanced(others, places, trial.takeover_seconds())
        since = time.monotonic_ns()
        joined = trial.start(topics=trial.topics)
        trial.settled([*others, joined], places)
        _finish(trial, feed)
    return str(_count(others, since))


def gained_partitions(trial: Trial) -> str:
    """New partitions are found and shared out."""
    places = trial.topic("grows", PARTITIONS)
    with trial.feed(places) as feed:
        members = _three(trial, places)
        more = trial.grow(trial.topics[0], PARTITIONS, _GROWN)
        feed.add(more)
        trial.balanced(members, [*places, *more])
        _finish(trial, feed)
    return ""


def matched_topic(trial: Trial) -> str:
    """A topic made after the members subscribed by an expression comes to them; one that does not match stays out."""
    if trial.site.membership.no_patterns:
        raise NotOffered(trial.site.membership.no_patterns)
    places = trial.topic("match-a", PARTITIONS)
    with trial.feed(places) as feed:
        members = [trial.start(regex=f"{trial.name}-match-.*") for _ in range(_MEMBERS)]
        trial.settled(members, places)
        trial.topic("other", 1)
        more = trial.topic("match-b", _GROWN - PARTITIONS)
        feed.add(more)
        trial.balanced(members, [*places, *more])
        _finish(trial, feed)
    return ""


def restarted_broker(trial: Trial) -> str:
    """Members outlive a restart of the broker; what they committed is not read again after the next one.

    Whether they rebalance at the first is theirs: some clients forget all metadata, or give up, without a broker.
    """
    if trial.site.own is None:
        raise NotOffered("only a broker that the suite started is restarted")
    places = trial.topic("kept", PARTITIONS)
    with trial.feed(places) as feed:
        members = _three(trial, places)
        trial.restart_broker(kill=False)
        before = feed.acknowledged()
        trial.wait("records are taken again", lambda: len(feed.acknowledged() - before) > PARTITIONS, 10)
        trial.processed(feed.acknowledged())
        trial.settled(members, places)
        produced = feed.finish()
    trial.processed(produced)
    for member in members:
        member.close()
    trial.restart_broker(kill=True)
    with trial.feed(places) as feed:
        late = trial.start(topics=trial.topics)
        trial.balanced([late], places)
        time.sleep(_MORE_SECONDS)
        more = feed.finish()
    trial.processed(more)
    again = sorted(late.log.values() & produced)
    assert not again, f"{len(again)} of {len(produced)} committed records came again, {again[0]} among them"
    trial.check(produced | more)
    return ""


def static_restart(trial: Trial) -> str:
    """A member with a group.instance.id closes and starts again: it has its partitions, the others felt nothing."""
    if trial.site.membership.no_static:
        raise NotOffered(trial.site.membership.no_static)
    trial.lengthen_session()
    places = trial.topic("static", PARTITIONS)
    with trial.feed(places) as feed:
        members = [trial.start(topics=trial.topics, instance=f"seat-{seat}") for seat in range(_MEMBERS)]
        trial.settled(members, places)
        *others, leaving = members
        had, since = leaving.log.owned(), time.monotonic_ns()
        leaving.close()
        back = trial.start(topics=trial.topics, instance=leaving.order.instance or "")
        trial.settled([*others, back], places)
        _finish(trial, feed)
    moved = [
        f"{member.name} {event.kind} {len(event.places)}" for member in others for event in member.log.changes(since)
    ]
    assert not moved, f"the others were rebalanced: {', '.join(moved)}"
    assert back.log.owned() == had, f"it came back to {sorted(back.log.owned())}, not to {sorted(had)}"
    return ""


def cooperative(trial: Trial) -> str:
    """A fourth member joins and leaves: the three give up 3 of 12 partitions, then none. Tells both counts."""
    if trial.site.membership.no_cooperative and trial.site.protocol == "classic":
        raise NotOffered(trial.site.membership.no_cooperative)
    assignor = "cooperative-sticky" if trial.site.protocol == "classic" else ""
    places = trial.topic("calm", PARTITIONS)
    with trial.feed(places) as feed:
        members = _three(trial, places, assignor)
        since = time.monotonic_ns()
        fourth = trial.start(topics=trial.topics, assignor=assignor)
        trial.settled([*members, fourth], places)
        at_join = _count(members, since)
        since = time.monotonic_ns()
        fourth.close()
        trial.settled(members, places)
        at_leave = _count(members, since)
        _finish(trial, feed)
    fair = PARTITIONS // (_MEMBERS + 1)
    assert at_join == fair, f"{at_join} partitions were given up when a fourth member joined, not {fair}"
    assert at_leave == 0, f"{at_leave} partitions were given up when the fourth member left, not 0"
    return f"{at_join}, {at_leave}"


GROUP_SCENARIOS: tuple[GroupScenario, ...] = (
    GroupScenario(title="one of three is killed, another joins", slug="kill", run=killed_and_joined),
    GroupScenario(title="the topic gains partitions", slug="grow", run=gained_partitions),
    GroupScenario(title="an expression finds a new topic", slug="regex", run=matched_topic),
    GroupScenario(title="commits survive broker restarts", slug="restart", run=restarted_broker),
    GroupScenario(title="a static member restarts, no rebalance", slug="static", run=static_restart),
    GroupScenario(title="cooperative: keep what need not be given up", slug="coop", run=cooperative),
)

"""What the controller tells, and what brokers make of it."""

import asyncio
import json
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from headrace.cluster import feed as feed_module
from headrace.cluster.entries import EntryKind
from headrace.cluster.feed import Feed, FeedPosition
from headrace.cluster.image import BrokerNode, ClusterImage, Endpoint, PartitionState, Topic
from headrace.cluster.subscriber import Subscriber
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.testing.loop import run_virtual

BROKER = 1
WAIT = 5.0


def topic(name: str, number: int, partitions: int = 2, **more: Any) -> Topic:
    state = PartitionState(replicas=(1, 2), isr=(1, 2), leader=1)
    return Topic(name=name, id=UUID(int=number), partitions=(state,) * partitions, **more)


class Told:
    """A listener that notes what it is told."""

    def __init__(self) -> None:
        self.applied: list[tuple[str, list[int] | None]] = []
        self.removed: list[UUID] = []
        self.aside: list[UUID] = []
        self.gone: list[set[int]] = []
        self.configs: list[tuple[str, str]] = []

    def apply_topic(self, topic: Topic, changed: Iterable[int] | None = None) -> None:
        self.applied.append((topic.name, None if changed is None else list(changed)))

    def remove_topic(self, topic: Topic) -> None:
        self.removed.append(topic.id)

    def set_topic_aside(self, topic: Topic) -> None:
        self.aside.append(topic.id)

    def brokers_changed(self, gone: AbstractSet[int]) -> None:
        self.gone.append(set(gone))

    def configs_changed(self, kind: str, name: str) -> None:
        self.configs.append((kind, name))


class Setting:
    """A controller's feed and one broker that follows it."""

    def __init__(self, *topics: Topic, epoch: int = 7) -> None:
        self.told = Told()
        self.image = ClusterImage(cluster_id="c", controller_id=-1)
        self.subscriber = Subscriber(self.image, self.told)
        self.least_isr = 2
        self.elect(epoch, *topics)

    def elect(self, epoch: int, *topics: Topic) -> None:
        """A controller of that epoch begins, with these topics."""
        self.source = ClusterImage(cluster_id="c", controller_id=0)
        for each in topics:
            self.source.put_topic(each)
        self.feed = Feed(self.source, epoch, lambda _: self.least_isr)
        self.feed.begin()

    def put(self, changed: Topic) -> None:
        self.feed.apply_topic(changed)
        self.source.put_topic(changed)

    def remove(self, gone: Topic) -> None:
        self.source.note_deleted(gone.id)
        self.source.remove_topic(gone.name)
        self.feed.remove_topic(gone)

    async def ask(self) -> dict[str, Any]:
        """An answer of the feed, as it comes over a link."""
        answer = await self.feed.poll(BROKER, self.subscriber.position, 0.01)
        found: dict[str, Any] = json.loads(json.dumps(answer))
        return found

    async def follow(self, polls: int = 100) -> None:
        """Ask until there is nothing new."""
        for _ in range(polls):
            place = self.subscriber.position
            await self.subscriber.take(await self.ask(), place)
            if self.subscriber.position == place:
                return
        raise AssertionError("there is always something new")

    def known(self) -> dict[str, tuple[PartitionState, ...]]:
        return {each.name: each.partitions for each in self.image.topics()}


def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MOST_SENT", 2)


def test_a_new_broker_gets_everything_in_pages_and_then_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)
    topics = [topic(f"t{number}", number) for number in range(7)]

    async def main() -> None:
        setting = Setting(*topics)
        await setting.follow()
        assert sorted(setting.known()) == sorted(each.name for each in topics)
        assert setting.subscriber.position == FeedPosition(7, 0)
        state = replace(topics[3].partitions[0], leader=2, leader_epoch=1, partition_epoch=1)
        setting.put(replace(topics[3], partitions=(topics[3].partitions[0], state)))
        setting.remove(topics[4])
        setting.told.applied.clear()
        await setting.follow()
        assert setting.told.applied == [("t3", [1])]
        assert setting.told.removed == [topics[4].id]
        assert setting.known()["t3"][1] == state

    run_virtual(main)


def test_a_page_whose_answer_got_lost_is_given_again_and_nothing_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)
    topics = [topic(f"t{number}", number) for number in range(9)]

    async def main() -> None:
        setting = Setting(*topics)
        await setting.follow()
        setting.subscriber.forget_place()
        for lost in range(100):
            place = setting.subscriber.position
            if lost % 2:
                await setting.ask()  # and nobody hears it
            await setting.subscriber.take(await setting.ask(), place)
            if setting.subscriber.is_current:
                break
        assert setting.told.removed == []
        assert len(setting.known()) == 9

    run_virtual(main)


def test_an_answer_to_what_was_asked_before_this_broker_began_anew_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_pages(monkeypatch)
    topics = [topic(f"t{number}", number) for number in range(9)]

    async def main() -> None:
        setting = Setting(*topics)
        await setting.follow()
        setting.subscriber.forget_place()
        await setting.subscriber.take(await setting.ask(), setting.subscriber.position)
        place, late = setting.subscriber.position, await setting.ask()
        setting.subscriber.forget_place()
        await setting.subscriber.take(late, place)
        assert setting.subscriber.position == FeedPosition()
        await setting.follow()
        assert setting.told.removed == []

    run_virtual(main)


def test_a_snapshot_that_was_replaced_by_another_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)
    topics = [topic(f"t{number}", number) for number in range(9)]

    async def main() -> None:
        setting = Setting(*topics)
        for _ in range(3):
            await setting.subscriber.take(await setting.ask(), setting.subscriber.position)
        await setting.feed.poll(BROKER, FeedPosition(), 0)
        await setting.follow()
        assert len(setting.known()) == 9
        assert setting.told.removed == []

    run_virtual(main)


def test_what_a_whole_snapshot_does_not_name_is_deleted_only_if_it_is_known_to_be() -> None:
    async def main() -> None:
        kept, gone, lost = topic("kept", 1), topic("gone", 2), topic("lost", 3)
        setting = Setting(kept, gone, lost)
        await setting.follow()
        setting.elect(8, kept)
        setting.source.note_deleted(gone.id)
        await setting.follow()
        assert (setting.told.removed, setting.told.aside) == ([gone.id], [lost.id])
        assert list(setting.known()) == ["kept"]

    run_virtual(main)


def test_a_topic_that_was_made_anew_under_its_name_is_another_one() -> None:
    async def main() -> None:
        setting = Setting(topic("t", 1))
        await setting.follow()
        setting.elect(8, topic("t", 2))
        await setting.follow()
        assert (setting.told.removed, setting.told.aside) == ([], [UUID(int=1)])
        setting.elect(9, topic("t", 3))
        setting.source.note_deleted(UUID(int=2))
        await setting.follow()
        assert setting.told.removed == [UUID(int=2)]
        setting.elect(10, topic("t", 2))
        await setting.follow()
        assert [each.id for each in setting.image.topics()] == [UUID(int=2)]

    run_virtual(main)


def test_an_older_controller_is_not_believed_even_by_one_who_begins_anew() -> None:
    async def main() -> None:
        setting = Setting(topic("t", 1), epoch=9)
        await setting.follow()
        setting.subscriber.forget_place()
        setting.elect(8)
        for _ in range(3):
            await setting.subscriber.take(await setting.ask(), setting.subscriber.position)
        assert setting.told.removed == []
        assert not setting.subscriber.is_current

    run_virtual(main)


def test_who_is_too_far_behind_gets_everything_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        first = topic("t", 1)
        monkeypatch.setattr(feed_module, "MOST_KEPT", 3)
        setting = Setting(first)
        await setting.follow()
        for epoch in range(1, 10):
            state = replace(first.partitions[0], partition_epoch=epoch)
            setting.put(replace(first, partitions=(state, first.partitions[1])))
        await setting.follow()
        assert setting.known()["t"][0].partition_epoch == 9
        assert setting.subscriber.position == FeedPosition(7, 9)

    run_virtual(main)


def test_the_least_isr_is_the_controllers_and_a_change_of_it_is_told() -> None:
    async def main() -> None:
        first = topic("t", 1)
        setting = Setting(first)
        await setting.follow()
        assert [each.least_isr for each in setting.image.topics()] == [2]
        setting.least_isr = 1
        setting.put(first)
        await setting.follow()
        assert [each.least_isr for each in setting.image.topics()] == [1]

    run_virtual(main)


def test_who_is_not_what_it_was_is_named() -> None:
    async def main() -> None:
        setting = Setting()
        nodes = {number: BrokerNode(id=number, host="h", port=1, epoch=number) for number in (1, 2, 3)}
        setting.source.brokers = dict(nodes)
        await setting.follow()
        setting.source.brokers = {1: nodes[1], 2: replace(nodes[2], epoch=9), 4: replace(nodes[1], id=4)}
        setting.feed.brokers_changed()
        await setting.follow()
        assert setting.told.gone[-1] == {2, 3}

    run_virtual(main)


INSIDE = Endpoint("INSIDE", "SSL", "h", 2)
PLAIN = Endpoint("PLAINTEXT", "PLAINTEXT", "h", 1)


def test_listeners_of_brokers_are_told_before_the_brokers_as_a_setting_that_older_releases_pass_over() -> None:
    async def main() -> None:
        setting = Setting()
        two = BrokerNode(id=1, host="h", port=1, epoch=5, endpoints=(PLAIN, INSIDE), inter_broker="INSIDE")
        one = BrokerNode(id=2, host="h", port=1, epoch=6, endpoints=(PLAIN,), inter_broker="PLAINTEXT")
        setting.source.brokers = {1: two, 2: one}
        answer = await setting.ask()
        (kind, what, *_), (brokers, nodes) = answer["changes"][:2]
        assert (kind, what, brokers) == ("configs", "endpoints", "brokers")
        assert nodes == [[1, "h", 1, None, 5], [2, "h", 1, None, 6]], "as releases with one listener read it"
        await setting.follow()
        assert setting.image.brokers == {1: two, 2: one}
        setting.source.brokers = {1: replace(two, epoch=9, endpoints=(PLAIN,), inter_broker=""), 2: one}
        setting.feed.brokers_changed()
        await setting.follow()
        assert setting.told.gone[-1] == {1}
        assert [each.name for each in setting.image.brokers[1].endpoints] in (["PLAINTEXT"], [])
        assert setting.image.reachable("INSIDE") <= {1, 2}

    run_virtual(main)


def test_a_cluster_in_which_all_have_one_plain_listener_tells_of_none() -> None:
    async def main() -> None:
        setting = Setting()
        setting.source.brokers = {1: BrokerNode(id=1, host="h", port=1, epoch=5, endpoints=(PLAIN,))}
        answer = await setting.ask()
        assert [change[0] for change in answer["changes"]] == ["brokers", "ids_deleted"]
        await setting.follow()
        assert setting.image.brokers[1].endpoint("ANY") == Endpoint("ANY", "", "h", 1)

    run_virtual(main)


def test_who_waits_is_told_at_once_when_there_is_something_and_when_the_controller_resigns() -> None:
    async def main() -> None:
        setting = Setting(topic("t", 1))
        await setting.follow()
        loop = asyncio.get_running_loop()
        began = loop.time()
        waiting = asyncio.ensure_future(setting.feed.poll(BROKER, setting.subscriber.position, WAIT))
        loop.call_later(1, setting.feed.brokers_changed)
        assert (await waiting)["changes"] == [["brokers", []]]
        waiting = asyncio.ensure_future(setting.feed.poll(BROKER, FeedPosition(7, 1), WAIT))
        known = asyncio.ensure_future(setting.feed.applied_by([BROKER, 2], 1, WAIT))
        loop.call_later(1, setting.feed.close)
        with pytest.raises(CodedError) as refused:
            await waiting
        assert refused.value.code is ErrorCode.not_controller
        assert not await known
        assert loop.time() - began == pytest.approx(2)

    run_virtual(main)


def test_a_change_is_known_once_every_broker_has_asked_for_what_comes_after_it() -> None:
    async def main() -> None:
        setting = Setting(topic("t", 1))
        await setting.follow()
        setting.feed.brokers_changed()
        waiting = asyncio.ensure_future(setting.feed.applied_by([BROKER], 1, WAIT))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await setting.follow()
        assert await waiting
        assert not await setting.feed.applied_by([BROKER, 2], 1, WAIT)

    run_virtual(main)


def test_a_broker_in_a_new_life_has_taken_up_nothing_yet() -> None:
    async def main() -> None:
        setting = Setting(topic("t", 1))
        setting.feed.brokers_changed()
        await setting.follow()
        assert await setting.feed.applied_by([BROKER], 1, 0.1)
        await setting.feed.poll(BROKER, FeedPosition(), 0)
        assert not await setting.feed.applied_by([BROKER], 1, 0.1)

    run_virtual(main)


def test_others_have_turns_while_a_large_topic_is_taken_up() -> None:
    async def main() -> None:
        setting = Setting(topic("large", 1, partitions=1_000))
        seen: list[int] = []

        async def look() -> None:
            while not setting.subscriber.is_current:
                seen.append(len(setting.told.applied))
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        await setting.follow()
        await looking
        taken_up = [index for _, indexes in setting.told.applied for index in indexes or ()]
        assert taken_up == list(range(1_000))
        assert len({count for count in seen if 0 < count < len(setting.told.applied)}) >= 3

    run_virtual(main)


def test_who_begins_anew_takes_up_nothing_more_of_what_was_under_way() -> None:
    async def main() -> None:
        setting = Setting(topic("large", 1, partitions=1_000))
        while setting.subscriber.position.page == 0:
            await setting.subscriber.take(await setting.ask(), setting.subscriber.position)
        taking = asyncio.create_task(setting.subscriber.take(await setting.ask(), setting.subscriber.position))
        await asyncio.sleep(0)
        assert setting.told.applied
        setting.subscriber.forget_place()
        count = len(setting.told.applied)
        await taking
        assert len(setting.told.applied) == count
        assert setting.subscriber.position == FeedPosition()
        await setting.follow()
        assert setting.subscriber.is_current

    run_virtual(main)


def test_an_answer_holds_few_changes_of_large_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MOST_STATES", 5)

    async def main() -> None:
        setting = Setting()
        await setting.follow()
        for number in range(1, 5):
            setting.put(topic(f"t{number}", number, partitions=number * 2))
        sizes: list[int] = []
        while not sizes or sizes[-1]:
            place, answer = setting.subscriber.position, await setting.ask()
            sizes.append(len(answer["changes"]))
            await setting.subscriber.take(answer, place)
        assert sizes == [1, 1, 1, 1, 0]
        assert len(setting.known()) == 4

    run_virtual(main)


def test_an_image_is_whole_between_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MOST_SENT", 1)

    async def main() -> None:
        setting = Setting(topic("a", 1), topic("b", 2))
        subscriber, whole = setting.subscriber, []
        for _ in range(3):
            whole.append(setting.image.is_whole)
            await subscriber.take(await setting.ask(), subscriber.position)
        assert (whole, setting.image.is_whole) == ([False] * 3, True)
        setting.elect(8, topic("a", 1), topic("c", 3))
        for _ in range(3):
            await subscriber.take(await setting.ask(), subscriber.position)
            whole.append(setting.image.is_whole)
        assert whole[3:] == [False, False, True]
        subscriber.forget_place()
        assert not setting.image.is_whole

    run_virtual(main, seed=1)


def test_how_far_a_broker_has_come_and_since_when_it_lacks_something() -> None:
    async def main() -> None:
        setting = Setting(topic("t", 1))
        feed = setting.feed
        assert feed.progress(BROKER) is None
        place = FeedPosition(7, 0)
        first = asyncio.ensure_future(feed.poll(BROKER, place, WAIT))
        await asyncio.sleep(2)
        assert feed.progress(BROKER) == (0, 2.0, 0.0)
        feed.configs_changed("client_metrics", "s", {"interval.ms": "1000"})
        assert (await first)["changes"] == [["configs", "client_metrics", "s", {"interval.ms": "1000"}]]
        await asyncio.sleep(3)
        assert feed.progress(BROKER) == (0, 5.0, 5.0)
        second = asyncio.ensure_future(feed.poll(BROKER, FeedPosition(7, 1), WAIT))
        await asyncio.sleep(0)
        assert feed.progress(BROKER) == (1, 0.0, 0.0)
        second.cancel()

    run_virtual(main)


def test_settings_of_kinds_that_a_later_release_knows_are_passed_over() -> None:
    async def main() -> None:
        setting = Setting(topic("t", 1))
        answer = await setting.feed.poll(BROKER, setting.subscriber.position, WAIT)
        assert await setting.subscriber.take(answer, setting.subscriber.position)
        place = setting.subscriber.position
        changes = [["configs", "later", "x", {"a": "1"}], ["configs", "client_metrics", "s", {"interval.ms": "1000"}]]
        assert await setting.subscriber.take({"epoch": 7, "version": 2, "changes": changes}, place)
        assert setting.image.client_metrics == {"s": {"interval.ms": "1000"}}
        assert (setting.image.group_configs, setting.image.broker_configs) == ({}, {})

    run_virtual(main)


def test_entries_reach_brokers_and_what_a_snapshot_does_not_name_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)

    async def main() -> None:
        setting = Setting(topic("t", 1))
        mine = setting.image.entries[EntryKind.ACL]
        setting.image.put_entry(EntryKind.ACL, "withdrawn while it was away", {"a": ""})
        for number in range(9):
            setting.source.put_entry(EntryKind.ACL, f"r{number}", {"a": ""})
        await setting.follow()
        assert mine == {f"r{number}": {"a": ""} for number in range(9)}
        setting.feed.configs_changed("acl", "r1", {"b": ""})
        setting.feed.configs_changed("acl", "r2", {})
        await setting.follow()
        assert mine["r1"] == {"b": ""}
        assert "r2" not in mine

    run_virtual(main)

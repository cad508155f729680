"""Regular expressions that match in time linear in the name, whatever a client sends.

Kafka resolves subscriptions with RE2, which never backtracks. Python's own engine does, and an expression of twenty
characters can keep it busy for hours; so its parser reads the expression, and the matching is done here: the tree
becomes a nondeterministic automaton, whose sets of states become a deterministic one as names need them.
An expression matches a whole name. What no automaton can do (references to groups, looks around) is refused, as by RE2.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

from headrace.config import shown
from headrace.protocol.errors import CodedError, ErrorCode

LONGEST: Final = 1024
_MOST_NODES: Final = 2_000
_MOST_ITEMS: Final = 20_000
"""Parts of an expression looked at to build its automaton, repeated ones again; not all of them become nodes."""
_MOST_REMEMBERED: Final = 100_000
"""Nodes in remembered steps, about 5 MB; when there are more, they are found anew."""
_ACCEPT: Final = 0
_WORD: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_DIGITS: Final = frozenset("0123456789")
_SPACES: Final = frozenset(" \t\n\r\f\v")
_CATEGORIES: Final = {
    sre.CATEGORY_DIGIT: (_DIGITS, True),
    sre.CATEGORY_NOT_DIGIT: (_DIGITS, False),
    sre.CATEGORY_SPACE: (_SPACES, True),
    sre.CATEGORY_NOT_SPACE: (_SPACES, False),
    sre.CATEGORY_WORD: (_WORD, True),
    sre.CATEGORY_NOT_WORD: (_WORD, False),
}
_STARTS: Final = (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
_ENDS: Final = (sre.AT_END, sre.AT_END_STRING)

Test = Callable[[str], bool]


@dataclass(slots=True, eq=False)
class _State:
    """Where the automaton may be and what came before, with the steps from here that names have needed so far."""

    nodes: frozenset[int]
    is_start: bool
    after_word: bool
    following: dict[str, "_State"] = field(default_factory=dict)
    ends: bool | None = None


class Matcher:
    """One expression. `matches` tells whether it matches a whole name."""

    def __init__(self, regex: str) -> None:
        self._regex = regex
        self._tests: list[Test | None] = [None]
        self._next: list[tuple[int, ...]] = [()]
        self._places: dict[int, Any] = {}
        self._items = 0
        tree = parser.parse(regex)
        self._first = self._sequence(tree, _ACCEPT, tree.state.flags)
        self._forget()

    def matches(self, name: str) -> bool:
        state = self._start
        for character in name:
            following = state.following.get(character)
            if following is None:
                following = self._step(state, character)
            if not following.nodes:
                return False
            state = following
        if state.ends is None:
            state.ends = _ACCEPT in self._closure(state, "")
        return state.ends

    def _forget(self) -> None:
        self._states: dict[tuple[frozenset[int], bool], _State] = {}
        self._remembered = 0
        self._start = _State(frozenset({self._first}), True, False)

    def _step(self, state: _State, character: str) -> _State:
        reached: set[int] = set()
        for node in self._closure(state, character):
            test = self._tests[node]
            if test is not None and test(character):
                reached.update(self._next[node])
        nodes, after_word = frozenset(reached), character in _WORD
        self._remembered += 1 + len(nodes)
        if self._remembered > _MOST_REMEMBERED:
            self._forget()
        following = self._states.setdefault((nodes, after_word), _State(nodes, False, after_word))
        state.following[character] = following
        return following

    def _closure(self, state: _State, character: str) -> set[int]:
        """The nodes that are reached without reading, before `character` or, where it is empty, at the end."""
        found: set[int] = set()
        open_nodes = list(state.nodes)
        while open_nodes:
            node = open_nodes.pop()
            if node in found or not self._may_stand(node, state, character):
                continue
            found.add(node)
            if self._tests[node] is None:
                open_nodes += self._next[node]
        return found

    def _may_stand(self, node: int, state: _State, character: str) -> bool:
        place = self._places.get(node)
        if place is None:
            return True
        if place in _STARTS:
            return state.is_start
        if place in _ENDS:
            return not character
        at_boundary = state.after_word != (character in _WORD)
        return bool(at_boundary == (place is sre.AT_BOUNDARY))

    def _node(self, following: Iterable[int], test: Test | None = None) -> int:
        if len(self._tests) >= _MOST_NODES:
            raise invalid(self._regex, "it is too large")
        self._tests.append(test)
        self._next.append(tuple(following))
        return len(self._tests) - 1

    def _sequence(self, tree: Any, after: int, flags: int) -> int:
        for operation, argument in reversed(list(tree)):
            after = self._item(operation, argument, after, flags)
        return after

    def _item(self, operation: Any, argument: Any, after: int, flags: int) -> int:
        self._items += 1
        if self._items > _MOST_ITEMS:
            raise invalid(self._regex, "it is too large")
        if operation is sre.BRANCH:
            return self._node([self._sequence(branch, after, flags) for branch in argument[1]])
        if operation is sre.SUBPATTERN:
            _, added, removed, inner = argument
            return self._sequence(inner, after, (flags | added) & ~removed)
        if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            low, high, inner = argument
            return self._repeat(low, high, inner, after, flags)
        if operation is sre.AT:
            node = self._node([after])
            self._places[node] = argument
            return node
        return self._node([after], self._test(operation, argument, flags))

    def _repeat(self, low: int, high: Any, inner: Any, after: int, flags: int) -> int:
        if high is sre.MAXREPEAT:
            node = self._node(())
            self._next[node] = (self._sequence(inner, node, flags), after)
        else:
            node = after
            for _ in range(int(high) - low):
                node = self._node([self._sequence(inner, node, flags), after])
        for _ in range(low):
            before, node = node, self._sequence(inner, node, flags)
            if node == before:  # it reads nothing, however often
                break
        return node

    def _test(self, operation: Any, argument: Any, flags: int) -> Test:
        if operation is sre.ANY:
            return lambda character: character != "\n"
        if operation is sre.LITERAL:
            return _either_case(flags, lambda character: ord(character) == argument)
        if operation is sre.NOT_LITERAL:
            same = _either_case(flags, lambda character: ord(character) == argument)
            return lambda character: not same(character)
        if operation is sre.IN:
            return _set(argument, flags)
        raise invalid(self._regex, f"{str(operation).lower().replace('_', ' ')} is not supported")


def _either_case(flags: int, test: Test) -> Test:
    if not flags & sre.SRE_FLAG_IGNORECASE:
        return test
    return lambda character: test(character.lower()) or test(character.upper())


def _set(items: Any, flags: int) -> Test:
    is_negated = items[0][0] is sre.NEGATE
    tests = [_set_item(*item) for item in items if item[0] is not sre.NEGATE]
    inside = _either_case(flags, lambda character: any(test(character) for test in tests))
    return lambda character: inside(character) != is_negated


def _set_item(operation: Any, argument: Any) -> Test:
    if operation is sre.RANGE:
        low, high = argument
        return lambda character: bool(low <= ord(character) <= high)
    if operation is sre.CATEGORY:
        members, is_member = _CATEGORIES[argument]
        return lambda character: (character in members) == is_member
    return lambda character: bool(ord(character) == argument)


@lru_cache(maxsize=64)
def matcher(regex: str) -> Matcher:
    """The expression, ready to match; INVALID_REGULAR_EXPRESSION when it is none, or cannot be served."""
    if len(regex) > LONGEST:
        raise invalid(regex, f"it is longer than {LONGEST} characters")
    try:
        return Matcher(regex)
    except (re.error, OverflowError, RecursionError) as error:
        raise invalid(regex, str(error)) from None


def invalid(regex: str, reason: str) -> CodedError:
    return CodedError(
        ErrorCode.invalid_regular_expression,
        f"SubscribedTopicRegex `{shown(regex)}` is not a valid regular expression: {reason}.",
    )

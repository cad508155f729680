"""Who a client certificate stands for: its subject as Java prints it, and `ssl.principal.mapping.rules`.

The subject is written as `X500Principal.getName()` does (RFC 2253): attributes from the last to the first, those that
RFC 2253 has a keyword for by it and as text, others by their number and as `#` with the bytes in hexadecimal. Rules are
Kafka's, `RULE:pattern/replacement/[LU]` and `DEFAULT`, tried in order: a pattern must match the whole name.

Patterns are RE2's, whose time grows with the length of a name alone: what is in a name is up to whoever has a
certificate, and handshakes have the event loop. A pattern that looks ahead or refers to its groups, which RE2 cannot
do, is Python's, and is asked of names up to `LONGEST_BACKTRACKED` only.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import re2
from cryptography import x509

from headrace.config.names import shown

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_STRINGS: Final = frozenset({12, 19, 20, 22, 27, 28, 30})
"""ASN.1's kinds of string, by their tags. Java takes the bytes of each for UTF-8, whatever they are."""
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_SPACES: Final = " \r"
_LONG_LENGTH: Final = 0x80

_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSER: Final = re.compile(_RULE)
_NAMED_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z])")
"""As Java writes it."""
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d)(\d*)|(\$)", re.DOTALL)


LONGEST_BACKTRACKED: Final = 512
"""Characters of a name that a pattern may take more than one look at."""


class NoRuleApplies(Exception):
    """No rule says whom a certificate stands for."""


def subject_name(certificate: bytes) -> str:
    """The subject of a certificate (DER), as Java prints it."""
    return name_text(x509.load_der_x509_certificate(certificate).subject.public_bytes())


def name_text(der: bytes) -> str:
    """A distinguished name (DER), as Java prints it."""
    sequence = next(_values(der))
    return ",".join(reversed([_relative(content) for _, content, _ in _values(sequence.content)]))


class _Value(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


def _values(der: bytes) -> Iterator[_Value]:
    """One value of ASN.1 after the other. What comes here was parsed by OpenSSL before."""
    at = 0
    while at < len(der):
        length, body = der[at + 1], at + 2
        if length >= _LONG_LENGTH:
            size = length - _LONG_LENGTH
            length, body = int.from_bytes(der[body : body + size], "big"), body + size
        yield _Value(der[at], der[body : body + length], der[at : body + length])
        at = body + length


def _relative(attributes: bytes) -> str:
    return "+".join(_attribute(content) for _, content, _ in _values(attributes))


def _attribute(der: bytes) -> str:
    kind, value = _values(der)
    number = _dotted(kind.content)
    keyword = _KEYWORDS.get(number)
    if keyword is None or value.tag not in _STRINGS:
        return f"{keyword or number}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(value.content.decode('utf-8', 'replace'))}"


def _dotted(content: bytes) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if byte < _LONG_LENGTH:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _escaped(text: str) -> str:
    escaped = "".join(f"\\{c}" if c in _ESCAPED else "\\00" if c == "\0" else c for c in text)
    lead = len(escaped) - len(escaped.lstrip(_SPACES))
    trail = len(escaped.rstrip(_SPACES))
    return "".join(f"\\{c}" if at < lead or at >= trail else c for at, c in enumerate(escaped))


class _Rule(NamedTuple):
    pattern: Any
    """Compiled by RE2 or `re`, which are used alike; None for DEFAULT: the name as it is."""
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        pattern = self.pattern
        if pattern is None:
            return name
        if isinstance(pattern, re.Pattern) and len(name) > LONGEST_BACKTRACKED:
            raise NoRuleApplies(
                f"a name of {len(name)} characters; '{pattern.pattern}' of ssl.principal.mapping.rules, which looks "
                f"ahead or back, is asked of names up to {LONGEST_BACKTRACKED}"
            )
        if pattern.fullmatch(name) is None:
            return None
        mapped = str(pattern.sub(self._replaced, name))
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped

    def _replaced(self, match: Any) -> str:
        """`$1` is a group, as far as there are so many, and else as it stands; a backslash takes away any meaning."""

        def part(char: "re.Match[str]") -> str:
            escaped, first, more, _ = char.groups()
            if escaped is not None:
                return str(escaped)
            if first is None or (int(first) > match.re.groups):
                return char[0]
            number, used = int(first), 0
            while used < len(more) and int(f"{number}{more[used]}") <= match.re.groups:
                number, used = int(f"{number}{more[used]}"), used + 1
            return (match[number] or "") + more[used:]

        return _REFERENCE.sub(part, self.replacement)


class PrincipalMapping:
    """`ssl.principal.mapping.rules`."""

    def __init__(self, rules: str) -> None:
        """ValueError says which rule is none."""
        self._rules = tuple(_rules(rules.strip()))

    def principal(self, name: str) -> str:
        """`User:` and what the rules make of a distinguished name; `NoRuleApplies`."""
        for rule in self._rules:
            mapped = rule.apply(name)
            if mapped is not None:
                return f"User:{mapped}"
        raise NoRuleApplies(f"no rule of ssl.principal.mapping.rules applies to '{shown(name)}'")


def _rules(text: str) -> Iterator[_Rule]:
    for split in _SPLITTER.finditer(text):
        rule = split[1]
        parsed = _PARSER.match(rule)
        if parsed is None or parsed.end() != len(rule):
            raise ValueError(f"'{rule}' is no rule; write DEFAULT, or RULE:pattern/replacement/ with L or U after it")
        if parsed[1] is not None:
            yield _Rule(None, "", "")
        elif parsed[2] is not None:
            yield _Rule(_compiled(parsed[2]), parsed[3], parsed[4])


def _compiled(pattern: str) -> Any:
    expression = _NAMED_GROUP.sub("(?P<", pattern)
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error:
        pass
    try:
        return re.compile(expression)
    except re.error as error:
        raise ValueError(f"'{pattern}' is no pattern: {error}") from None

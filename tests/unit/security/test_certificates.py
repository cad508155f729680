"""Whom a certificate stands for: names as Java prints them, rules as Kafka's."""

import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.name import _ASN1Type  # no public way to choose the kind of string
from cryptography.x509.oid import NameOID, ObjectIdentifier

from headrace.security.certificates import NoRuleApplies, PrincipalMapping, name_text, subject_name
from tests.support.apache_kafka import java_with_kafka
from tests.support.certificates import Authority, name

UNKNOWN = ObjectIdentifier("1.3.6.1.4.1.99999.7.300")


def attribute(kind: ObjectIdentifier, text: str, form: _ASN1Type | None = None) -> x509.NameAttribute[str]:
    return x509.NameAttribute(kind, text, form, _validate=False)


def alone(kind: ObjectIdentifier, text: str, form: _ASN1Type) -> x509.RelativeDistinguishedName:
    return x509.RelativeDistinguishedName([attribute(kind, text, form)])


def names() -> list[x509.Name]:
    """Names with everything that Java prints in a way of its own."""
    odd = [
        " leading",
        "trailing ",
        "  ",
        'a,b+c=d<e>f#g;h"i\\j',
        "#hash",
        "Zoë Ünïcode 日本",
        "a  b",
        "nul\0l",
        "x\r",
        "/",
    ]
    each = [
        (NameOID.COUNTRY_NAME, "CH"),
        (NameOID.STATE_OR_PROVINCE_NAME, "Bern"),
        (NameOID.LOCALITY_NAME, "Thun"),
        (NameOID.STREET_ADDRESS, "Main street 1"),
        (NameOID.ORGANIZATION_NAME, "Mills, Inc."),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, "grain"),
        (NameOID.DOMAIN_COMPONENT, "example"),
        (NameOID.USER_ID, "u1"),
        (NameOID.EMAIL_ADDRESS, "a@example.com"),
        (NameOID.SERIAL_NUMBER, "77"),
        (NameOID.GIVEN_NAME, "Al"),
        (NameOID.TITLE, "Dr"),
        (UNKNOWN, "what"),
        (NameOID.COMMON_NAME, "alice"),
    ]
    found = [x509.Name([attribute(NameOID.COMMON_NAME, text)]) for text in odd]
    found.append(x509.Name([attribute(kind, text) for kind, text in each]))
    found.append(
        x509.Name(
            [
                x509.RelativeDistinguishedName(
                    [attribute(NameOID.COMMON_NAME, "both"), attribute(NameOID.USER_ID, "u+1")]
                ),
                alone(NameOID.ORGANIZATION_NAME, "wide ü", _ASN1Type.BMPString),
                alone(NameOID.LOCALITY_NAME, "plain", _ASN1Type.PrintableString),
                alone(NameOID.ORGANIZATIONAL_UNIT_NAME, "ia5", _ASN1Type.IA5String),
            ]
        )
    )
    found.append(x509.Name([]))
    return found


def test_a_subject_is_printed_from_its_last_attribute_to_its_first() -> None:
    signed = Authority().sign(name("alice", unit="x", organization="y"))
    assert subject_name(signed.der) == "CN=alice,OU=x,O=y"
    assert name_text(x509.Name([]).public_bytes()) == ""


@pytest.mark.slow
def test_names_are_printed_as_java_prints_them(tmp_path: Path) -> None:
    """`X500Principal.getName()`, which Kafka hands to its rules, on a Java that is here."""
    source = tmp_path / "Names.java"
    source.write_text(
        """
        import java.nio.charset.StandardCharsets;
        import java.util.HexFormat;
        import javax.security.auth.x500.X500Principal;
        public class Names {
            public static void main(String[] names) {
                for (String name : names) {
                    String text = new X500Principal(HexFormat.of().parseHex(name)).getName();
                    System.out.println(HexFormat.of().formatHex(text.getBytes(StandardCharsets.UTF_8)));
                }
            }
        }
        """
    )
    encoded = [each.public_bytes() for each in names()]
    ran = subprocess.run(
        ["java", str(source), *(der.hex() for der in encoded)], capture_output=True, text=True, timeout=120, check=True
    )
    printed = [bytes.fromhex(line).decode() for line in ran.stdout.split("\n")[:-1]]
    assert [name_text(der) for der in encoded] == printed


DN = "CN=Alice Miller,OU=grain,O=Mills,C=CH"


RULES = {
    "DEFAULT": DN,
    "": None,
    "RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/": "Alice Miller@grain",
    "RULE:^CN=(.*?),.*$/$1/L": "alice miller",
    "RULE:^CN=(.*?),.*$/$1/U": "ALICE MILLER",
    "RULE:^CN=bob,.*$/bob/,DEFAULT": DN,
    "RULE:^OU=(.*?)$/x/, RULE:^.*[Cc][Nn]=([^,]*).*$/$1/L , DEFAULT": "alice miller",
    r"RULE:^CN=(\w+) (\w+),.*$/$2\/$1/": "Miller/Alice",
    "RULE:^CN=(?<who>[^,]*),.*$/$1/": "Alice Miller",
    "RULE:.*/x/": "xx",  # Java's replaceAll also finds the nothing at the end
    "RULE:^CN=(.*?),.*$/$1$2/": "Alice Miller$2",
    "RULE:^CN=(.*?),.*$/$10/": "Alice Miller0",
    "RULE:^CN=(.*?),.*$/$01/": "Alice Miller",
    "RULE:^CN=(.*?),.*$/$0-$1/": f"{DN}-Alice Miller",
    r"RULE:^CN=(.*?),.*$/\$1/": "$1",
    "RULE:^CN=(.*?),.*$//,DEFAULT": "",
    "RULE:^CN=bob$/bob/": None,
    r"RULE:^CN=(?!bob)(\w+) (?:.*)$/$1/": "Alice",  # RE2 does not look ahead
    r"RULE:^CN=(.).*,C=(.)H$/$1$2/": "AC",
    "ALL": ValueError,
    "RULE:a": ValueError,
    "RULE:a/b": ValueError,
    "RULE:a/b/X": ValueError,
    "DEFAULTS": ValueError,
    "RULE:(/x/": ValueError,
    "default": ValueError,
}
"""Rules, and what they make of the name: None where they make nothing of it."""


def mapped(rules: str) -> object:
    try:
        return PrincipalMapping(rules).principal(DN).removeprefix("User:")
    except NoRuleApplies:
        return None
    except ValueError:
        return ValueError


@pytest.mark.parametrize("rules", RULES)
def test_rules_make_principals_of_names(rules: str) -> None:
    assert mapped(rules) == RULES[rules]


@pytest.mark.kafka
@pytest.mark.long
def test_kafka_makes_the_same_of_each_rule(tmp_path: Path) -> None:
    source = tmp_path / "Rules.java"
    source.write_text(
        """
        import org.apache.kafka.common.security.ssl.SslPrincipalMapper;
        public class Rules {
            public static void main(String[] arguments) throws Exception {
                for (int i = 1; i < arguments.length; i++) {
                    String made;
                    try {
                        made = "=" + SslPrincipalMapper.fromRules(arguments[i]).getName(arguments[0]);
                    } catch (SslPrincipalMapper.NoMatchingRule nobody) {
                        made = "none";
                    } catch (IllegalArgumentException refused) {
                        made = "refused";
                    }
                    System.out.println(made);
                }
            }
        }
        """
    )
    command = [*java_with_kafka(), str(source), DN, *RULES]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    printed: dict[object, str] = {None: "none", ValueError: "refused"}
    assert ran.stdout.split("\n")[:-1] == [printed.get(made, f"={made}") for made in RULES.values()]


def test_who_no_rule_applies_to_is_nobody() -> None:
    with pytest.raises(NoRuleApplies, match="applies to 'CN=Alice"):
        PrincipalMapping("RULE:^CN=bob$/bob/").principal(DN)


def test_what_is_no_rule_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="'ALL' is no rule"):
        PrincipalMapping("ALL")
    with pytest.raises(ValueError, match="is no pattern"):
        PrincipalMapping("RULE:(/x/")


@pytest.mark.parametrize(
    "rule",
    [
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),OU=(.*?),L=(.*?)$/$1/",
        "RULE:^CN=(?!x)(.*?),OU=(.*?),O=(.*?),OU=(.*?),L=(.*?)$/$1/",
        r"RULE:^((\w|\W)+)+!$/$1/",
    ],
)
def test_no_name_keeps_a_rule_busy(rule: str) -> None:
    steps = "CN=" + ",OU=,O=" * 10_000
    with pytest.raises(NoRuleApplies):
        PrincipalMapping(rule).principal(steps)

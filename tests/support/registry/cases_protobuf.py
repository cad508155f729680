"""Protobuf's rules for updating a message, as Confluent's registry has them, one change a case.

Each case: what changes, the old body of the file, the new one, whether new readers read old data, and the other way.
"""

from itertools import pairwise

Case = tuple[str, str, str, bool, bool]
NUMBERS = ("int32", "int64", "uint32", "uint64", "bool")


def m(fields: str) -> str:
    return f"message M {{ {fields} }}"


def field(kind: str) -> str:
    return m(f"{kind} a = 1;")


GROUPS = (NUMBERS, ("sint32", "sint64"), ("string", "bytes"), ("fixed32", "sfixed32"), ("fixed64", "sfixed64"))
ALIKE: list[Case] = [
    (f"{old} becomes {new}", field(old), field(new), True, True) for group in GROUPS for old, new in pairwise(group)
]
UNLIKE = "int32 sint32, int32 string, int32 fixed32, int64 double, fixed32 fixed64, fixed32 float, fixed64 double, "
UNLIKE += "float double, string bool, sint64 sfixed64"
APART: list[Case] = [
    (f"{old} becomes {new}", field(old), field(new), False, False)
    for old, new in (pair.split() for pair in UNLIKE.split(", "))
]
TWO_FIELDS = m("string a = 1; string b = 2;")
ONEOF = m("oneof o { string a = 1; string b = 2; }")

CASES: list[Case] = [
    *ALIKE,
    *APART,
    ("a field is added", field("string"), TWO_FIELDS, True, True),
    ("a field is renamed", field("string"), m("string z = 1;"), True, True),
    ("a field's number changes", field("string"), m("string a = 2;"), True, True),
    ("fields change places", TWO_FIELDS, m("string b = 2; string a = 1;"), True, True),
    ("a removed field is reserved", TWO_FIELDS, m('string a = 1; reserved 2; reserved "b";'), True, True),
    ("a string becomes repeated", field("string"), field("repeated string"), True, True),
    ("a number becomes optional", field("int32"), field("optional int32"), True, True),
    ("an optional number becomes repeated", field("optional int32"), field("repeated int32"), False, False),
    ("an optional string becomes repeated", field("optional string"), field("repeated string"), True, True),
    ("a scalar becomes a message", field("string"), m("message S { } S a = 1;"), False, False),
    ("a scalar becomes a map", field("string"), field("map<string, string>"), False, False),
    ("a map's values change alike", field("map<string, int32>"), field("map<string, int64>"), True, True),
    ("a map's values change apart", field("map<string, int32>"), field("map<string, string>"), False, False),
    ("a map's keys change apart", field("map<string, int32>"), field("map<int32, int32>"), False, False),
    ("a map's messages change",
     m("message S { int32 x = 1; } map<string, S> a = 1;"),
     m("message S { string x = 1; } map<string, S> a = 1;"), False, False),
    ("a message is added", field("string"), field("string") + " message N { }", True, False),
    ("messages change places", "message A { } message B { }", "message B { } message A { }", True, True),
    ("a nested message is added", field("string"), m("string a = 1; message N { }"), True, False),
    ("a field's message is renamed",
     m("message S { } message T { } S a = 1;"), m("message S { } message T { } T a = 1;"), False, False),
    ("a field's message is written with its full name",
     m("message S { } S a = 1;"), m("message S { } .M.S a = 1;"), True, True),
    ("a field's message gets a field",
     m("message S { int32 x = 1; } S a = 1;"), m("message S { int32 x = 1; int32 y = 2; } S a = 1;"), True, True),
    ("a field's message changes a type",
     m("message S { int32 x = 1; } S a = 1;"), m("message S { string x = 1; } S a = 1;"), False, False),
    ("a message that contains itself stays", m("M next = 1; int32 a = 2;"), m("M next = 1; int64 a = 2;"), True, True),
    ("an enum gets a value", "enum E { A = 0; }", "enum E { A = 0; B = 1; }", True, True),
    ("an enum's value is renamed", "enum E { A = 0; }", "enum E { Z = 0; }", True, True),
    ("an enum is added", field("string"), field("string") + " enum E { A = 0; }", True, True),
    ("an enum becomes a number", m("enum E { A = 0; } E a = 1;"), m("enum E { A = 0; } int32 a = 1;"), True, True),
    ("an enum becomes a string", m("enum E { A = 0; } E a = 1;"), m("enum E { A = 0; } string a = 1;"), False, False),
    ("one field moves into a new oneof", field("string"), m("oneof o { string a = 1; }"), True, True),
    ("a field moves into a new oneof with a new field", field("string"), ONEOF, True, False),
    ("two fields move into a new oneof", TWO_FIELDS, ONEOF, False, True),
    ("a field moves into an oneof there is",
     m("oneof o { string a = 1; } string b = 2;"), ONEOF, False, True),
    ("an oneof gets a field", m("oneof o { string a = 1; }"), ONEOF, True, False),
    ("an oneof is renamed", ONEOF, m("oneof p { string a = 1; string b = 2; }"), True, True),
    ("an oneof goes with all its fields",
     m("string z = 3; oneof o { string a = 1; string b = 2; }"), m("string z = 3;"), True, True),
    ("two oneofs become one",
     m("oneof o { string a = 1; } oneof p { string b = 2; }"), ONEOF, False, True),
    ("a field in an oneof changes apart", ONEOF, m("oneof o { string a = 1; int32 b = 2; }"), False, False),
    ("the package changes", "package x; " + field("string"), "package y; " + field("string"), False, False),
    ("an option is added", field("string"), 'option java_package = "x"; ' + field("string"), True, True),
    ("a service is added",
     "message A { }", "message A { } service S { rpc Go (A) returns (stream A); }", True, True),
    ("a well-known type is used",
     'import "google/protobuf/timestamp.proto"; ' + field("google.protobuf.Timestamp"),
     'import "google/protobuf/timestamp.proto"; ' + field(".google.protobuf.Timestamp"), True, True),
    ("a well-known type becomes another",
     'import "google/protobuf/timestamp.proto"; ' + field("google.protobuf.Timestamp"),
     'import "google/protobuf/duration.proto"; ' + field("google.protobuf.Duration"), False, False),
]  # fmt: skip

PROTO2: list[Case] = [
    ("proto2: an optional field is added",
     m("optional int32 a = 1;"), m("optional int32 a = 1; optional int32 b = 2;"), True, True),
    ("proto2: a required field is added",
     m("optional int32 a = 1;"), m("optional int32 a = 1; required int32 b = 2;"), False, False),
    ("proto2: required becomes optional", m("required int32 a = 1;"), m("optional int32 a = 1;"), False, False),
    ("proto2: a default changes",
     m("optional int32 a = 1 [default = 1];"), m("optional int32 a = 1 [default = 2];"), True, True),
    ("proto2: extensions are declared",
     m("optional int32 a = 1;"), m("optional int32 a = 1; extensions 100 to 199;"), True, True),
    ("proto2: a group gets a field",
     m("optional group G = 1 { optional int32 x = 1; }"),
     m("optional group G = 1 { optional int32 x = 1; optional int32 y = 2; }"), True, True),
]  # fmt: skip

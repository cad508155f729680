"""The settings of a broker and of a topic, with Kafka's names: what exists, what is given, what is in force.

`setting` says what a setting is, `topic` and `broker` list them, `values` holds those of a running broker, `changes`
works out what an alter request asks for. Settings of Kafka that are accepted and do nothing here stand in a table of
their own, `no_effect`, which says why; whoever gives one is told.
"""

from .broker import BROKER_SETTINGS
from .changes import AlterConfigOp, AlterConfigOpType, changed
from .client_metrics import CLIENT_METRICS_SETTINGS, client_metrics_setting, validate_client_metrics
from .docs import render_docs
from .groups import OWN_GROUP_SETTINGS, Values, group_setting, group_value, validate_group_overrides
from .listeners import SASL_PLAINTEXT, SASL_SSL, SSL, ListenerAddress, parse_listener
from .names import shown
from .sasl import PLAIN_USERS
from .setting import ConfigError, ConfigSource, Setting, Type, Value, render
from .topic import TOPIC_SETTINGS, topic_setting, validate_topic_overrides
from .values import (
    BrokerConfig,
    FoundValue,
    Reloaded,
    broker_setting,
    effective_topic,
    scaled,
    validate_broker_overrides,
)

__all__ = [
    "BROKER_SETTINGS",
    "CLIENT_METRICS_SETTINGS",
    "OWN_GROUP_SETTINGS",
    "PLAIN_USERS",
    "SASL_PLAINTEXT",
    "SASL_SSL",
    "SSL",
    "TOPIC_SETTINGS",
    "AlterConfigOp",
    "AlterConfigOpType",
    "BrokerConfig",
    "ConfigError",
    "ConfigSource",
    "FoundValue",
    "ListenerAddress",
    "Reloaded",
    "Setting",
    "Type",
    "Value",
    "Values",
    "broker_setting",
    "changed",
    "client_metrics_setting",
    "effective_topic",
    "group_setting",
    "group_value",
    "parse_listener",
    "render",
    "render_docs",
    "scaled",
    "shown",
    "topic_setting",
    "validate_broker_overrides",
    "validate_client_metrics",
    "validate_group_overrides",
    "validate_topic_overrides",
]

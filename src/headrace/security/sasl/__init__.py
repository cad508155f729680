"""SASL on the broker's side: mechanisms as pure exchanges of tokens.

`exchange` says what an exchange is; `plain`, `scram` and `oauthbearer` are the mechanisms, `credentials` what is kept
of SCRAM users, `tokens` the delegation tokens that log in by SCRAM too, `keys` the keys that signed OAuth tokens.
"""

from .exchange import AuthenticationFailed, Challenge, Done, Mechanism, SaslServer, Step, Wait
from .plain import PLAIN, PlainUsers, plain, users_of

__all__ = [
    "PLAIN",
    "AuthenticationFailed",
    "Challenge",
    "Done",
    "Mechanism",
    "PlainUsers",
    "SaslServer",
    "Step",
    "Wait",
    "plain",
    "users_of",
]

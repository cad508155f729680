"""How two brokers know each other: both hold the cluster's secret, and neither sends it.

    asker                                            answerer
      | from, to, cluster, epoch, nonce                 |
      |------------------------------------------------>|
      |             epoch, nonce, proof of the answerer |
      |<------------------------------------------------|
      | proof of the asker                              |
      |------------------------------------------------>|  the connection is a broker's
      |                                              ok |
      |<------------------------------------------------|

A proof is an HMAC over everything said so far and the role of who proves, so that none can be sent back to its maker
or used on another connection, for another broker, or in another cluster. It says who opened the connection; it does
not hide or seal what follows on it.
"""

import hmac
import json
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256

NONCE_BYTES = 16


class Role(Enum):
    """The two sides of a connection."""

    ASKER = "asker"
    ANSWERER = "answerer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """All that was said in a handshake."""

    cluster_id: str
    asker: int
    answerer: int
    asker_epoch: int
    answerer_epoch: int
    asker_nonce: str
    answerer_nonce: str

    def proof(self, secret: bytes, role: Role) -> str:
        """What only who knows the secret can say."""
        facts = [
            role.value,
            self.cluster_id,
            self.asker,
            self.answerer,
            self.asker_epoch,
            self.answerer_epoch,
            self.asker_nonce,
            self.answerer_nonce,
        ]
        return hmac.new(secret, json.dumps(facts).encode(), sha256).hexdigest()

    def is_proved(self, secret: bytes, role: Role, proof: str) -> bool:
        """Whether the other side knows the secret too."""
        return hmac.compare_digest(self.proof(secret, role).encode(), proof.encode(errors="replace"))

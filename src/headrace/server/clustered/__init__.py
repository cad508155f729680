"""A broker among others: its membership, links to its peers, requests forwarded to the active controller."""

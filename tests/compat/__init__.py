"""Other people's clients against a running broker.

`model` says what a client can be asked to do, `clients/` teaches each client to do it, `scenarios` asks every
client the same questions, and `report` writes down the answers.
"""

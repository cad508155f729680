"""A schema registry with Confluent's API, whose state is a log: every gateway replays it and all agree."""

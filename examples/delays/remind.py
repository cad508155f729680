from datetime import UTC, datetime, timedelta

from headrace.client import Producer

with Producer() as producer:
    producer.send("reminders", "in two seconds", deliver_after=2)  # or a timedelta
    producer.send("reminders", "at its time", deliver_at=datetime.now(UTC) + timedelta(seconds=3))

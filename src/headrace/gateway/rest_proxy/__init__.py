"""The APIs of Confluent's REST Proxy, v2 and v3, for programs that have spoken them elsewhere."""

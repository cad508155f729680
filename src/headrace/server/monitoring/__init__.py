"""What is watched of a running broker, and the HTTP port that tells it: /metrics, /healthz, /readyz."""

"""What is measured: plain integers where things happen, one table of names, and Prometheus text made from both."""

"""Groups: who reads what, and how far they are. State machines that decide, and a service that acts."""

"""Leaders and followers: from a request to the log and back."""

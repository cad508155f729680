"""One module per client library: the verbs of `ClientDriver` in that library's own words."""

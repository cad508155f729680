"""One partition as this broker holds it. (Contract; the behaviour follows.)"""

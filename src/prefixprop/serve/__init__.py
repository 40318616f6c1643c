"""Serving: the runs on one frozen encoder, answered over HTTP."""

"""Logs, metrics and health for every service: plumbing without opinions."""

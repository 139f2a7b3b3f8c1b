"""Accounts, control groups and directories that keep users apart."""

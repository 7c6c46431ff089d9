"""Deciding, and then carrying out, where every variable's value comes from."""

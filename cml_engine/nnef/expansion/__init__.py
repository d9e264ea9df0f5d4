"""Syntax trees <-> graphs: evaluation, expansion of fragments, operators' signatures."""

"""Predictions over gRPC with the KServe (Triton) v2 inference protocol, for clients that speak it already."""

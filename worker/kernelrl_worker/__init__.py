"""The reference worker: hosts PyTorch for the verifier. Trusted; it never sees an answer."""

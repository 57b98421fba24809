"""What checks kernels without a GPU: the interpreter made honest and traced, and the table of compiled kernels."""

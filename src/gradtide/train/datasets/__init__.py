"""Data sets that are files, not in the package.

idx.py              the IDX format those files are in
fashion_mnist.py    Fashion-MNIST: where its files may be, and how they get there
"""

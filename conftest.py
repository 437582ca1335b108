"""What holds for every test and every process that a test starts, the plugins' too.

The oracles multiply small matrices. With more threads than one, OpenBLAS shares even these out, and its threads wait
for each other by spinning: beside other tests on the same cores that takes several times the work itself.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before anything imports numpy

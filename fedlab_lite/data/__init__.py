"""Data for clients: data sets by name or from a file, partitions, and the container that stacks them.

`federated` loads a data set, divides it among clients and returns a `Federated`.
"""

from fedlab_lite.data.container import Federated
from fedlab_lite.data.load import PARTITIONS, federated
from fedlab_lite.data.partition import by_label, dirichlet, iid
from fedlab_lite.data.partition_deprl import dirichlet_capped
from fedlab_lite.data.pool import Pool
from fedlab_lite.data.pooled_rows import apart, counted, is_rows
from fedlab_lite.data.text import PAD
from fedlab_lite.data.which import DATASETS, EMBEDDED, describe

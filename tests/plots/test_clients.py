"""Clients one by one: what each holds, a panel a run, and that legends name every line."""

from dataclasses import replace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers import history, unlabelled

from fedlab_lite.data import federated
from fedlab_lite.plots import clients, style

mpl.use("agg")
RUN = history([[0.1, 0.5, 0.6], [0.1, 0.7, 0.8]])
RUN = replace(RUN, client_curves=np.linspace(0, 1, 18, dtype=np.float32).reshape(2, 3, 3), constant=0.1)


def test_holdings_count_labels_rows_and_owners():
    data = federated("digits", partition="by_label", num_clients=10, classes_per_client=1, train_size=100)
    counts = clients.label_counts(data)
    assert counts.sum() == 100
    assert (counts > 0).sum(1).tolist() == [1] * 10
    assert clients.holdings(data).caption == "10 clients with 10 rows and 1 label each; each label is held by 1 client"


@pytest.mark.parametrize(("others", "titles"), [(6, 6), (5, 6), (3, 4)])
def test_local_has_a_panel_where_one_is_free(others, titles):
    names = ["dec_fedavg", "dec_fedprox", "dfedavgm", "dfedadmm", "cmfd", "fedf_admm"][:others]
    fig = clients.client_panels(dict.fromkeys(["local", *names], RUN), {"dec_fedavg": 65.9})
    found = [ax.get_title() for ax in fig.axes]
    assert len(found) == titles
    assert ("Local" in found) == (others < 6)
    assert unlabelled(fig) == []
    assert fig.get_figwidth() <= style.WIDTH
    (legend,) = fig.legends
    assert {text.get_text() for text in legend.get_texts()} == {
        *("a client", "mean over clients", "mean of Local", "majority baseline", "published")
    }
    plt.close(fig)


def test_a_run_that_diverged_says_so():
    fig = clients.client_panels({"cmfd": replace(RUN, diverged=(True, False))})
    assert fig.axes[0].get_title() == "CMFD (diverged)"
    plt.close(fig)

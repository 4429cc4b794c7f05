"""Display names, which sentences and tables show in place of keys such as `motion_ring_0.3/deprl`."""

import re

from fedlab_lite.plots import NETWORKS, look

WORDS = {  # of the parts of a key
    **{"fashion": "Fashion-MNIST", "fmnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"},
    **{"femnist": "FEMNIST", "harbox": "HARBox", "shakespeare": "Shakespeare", "motion": "motion", "digits": "digits"},
    **{"ring": "ring", "random": "random graph", "complete": "complete graph", "star": "star", "iid": "iid"},
    **{"1class": "1 class", "2class": "2 classes", "cnn": "CNN", "conv": "with convolutions", "mnist": ""},
    **{"rho": "ρ =", "nu": "ν =", "pi": "π =", "dirichlet": "Dirichlet"},
    **{"01": "0.1", "03": "0.3", "05": "0.5"},
    **{"fedf": "FedF-ADMM", "admm": "", "cmfd": "CMFD", "deq": "DEQ", "mlp": "MLP", "resnet": "ResNet"},
    **{"own": "own start", "noisy": "larger duals"},
    **{"personal": "personal epochs", "shared": "shared epochs", "unseen": "new clients", "weak": "weak clients (%)"},
}
RUNS = {  # of keys that name a run, not a part of a column
    **{"random": "random", "shared": "shared θ", "own": "own θ", "eta of T": "η chosen for T", "one eta": "one η"},
}
METRICS = {
    **{"times_smaller": "times smaller", "size_reduction_percent": "parameters saved (%)"},
    **{"cohort_size": "clients per round", "classes_per_client": "classes per client", "by_label": "by label"},
    **{"memory_order": "growth of memory with depth", "sum_grad_theta": "norm of the sum of gradients"},
    **{"message_bytes": "bytes per message", "ratio_to_deepest": "deepest network over FeDEQ's"},
    **{"accuracy_gap": "gap between clients", "accuracy_pooled": "pooled accuracy", "loss_training": "training loss"},
    **{"accuracy_unseen": "accuracy of new clients"},
    **{"accuracy_training": "training accuracy", "accuracy_mixed": "accuracy after mixing"},
    **{"accuracy_trained": "accuracy after local training", "loss_trained": "loss after local training"},
    **{"accuracy_gap_trained": "gap after local training", "gap_trained": "gap after local training"},
    **{"accuracy_gap_mixed": "gap after mixing"},
    **{"size_mb": "size (MB)", "params_mb": "parameters (MB)", "outputs_kb": "outputs (kB)"},
    **{"parameter_order": "growth of parameters with depth", "time_ratio": "time of a step over ResNet-34's"},
    **{"memory_ratio": "ResNet-34's memory over the network's", "num_devices": "devices", "bytes_up": "bytes up"},
    **{"falls_inside_percent": "falls inside (%)", "falls_outside_percent": "falls outside (%)"},
    **{"less_than_fedavg_percent": "less than FedAvg (%)", "consensus_error": "consensus error"},
    **{"largest_increase": "largest increase", "resnet_to_deq_1": "ResNet to the level of the DEQ"},
    **{"to_accuracy": "to an accuracy", "fedreco_vr": "FedReCo, variance reduction", "one_step": "one step"},
    **{"fixed_point": "fixed point", "mb": "MB", "kl": "KL divergence"},
    **{"gain_0.25": "derivative gain 0.25", "gain_0.5": "derivative gain 0.5"},
    **{"shared_samples": "shared samples", "gamma_1": "Γ₁", "gamma_2": "Γ₂", "gamma_3": "Γ₃"},
    **{"accuracy_difference": "DEQ-MLP's accuracy minus MLP's (points)"},
}
MOMENTS = {"mixed": "after mixing", "trained": "after local training"}  # of a round, at which a method is judged
_KEY = re.compile(r"(?<![\w/.\\$])[a-z0-9]+(?:[_/.][a-zA-Z0-9]+)*[_/][a-zA-Z0-9_/.]*[a-zA-Z0-9]")


def plain_name(text: str) -> str:
    """The text with display names in place of keys, such as a run's "column/method".

    A word without a known part, such as phi_i, does not change.

    >>> plain_name("motion_ring_0.3/deprl"), plain_name("loss of fmnist_2class_cnn/dec_fedavg at the end")
    ('DePRL (motion, ring, 0.3)', 'loss of DecFedAvg (Fashion-MNIST, 2 classes, CNN) at the end')
    >>> plain_name("motion_ring_0.3/dpsgd/mixed"), plain_name("deq_resnet_s")
    ('D-PSGD (motion, ring, 0.3), after mixing', 'DEQ-ResNet-S')
    """
    if text == text.lower() and re.fullmatch(r"[\w./]+", text):
        return _named(text)
    return _KEY.sub(lambda match: _named(match[0]), text)


def plain_key(key: str) -> str:
    """The display name of a metric's key, whose parts may be words: the last part, and the others in brackets.

    >>> plain_key("iid/rounds 75%/deq_1"), plain_key("falls_inside_percent/1-class, drawn"), plain_key("fedavg")
    ('DEQ, 1 (iid, rounds 75%)', '1-class, drawn (falls inside (%))', 'FedAvg')
    """
    if re.fullmatch(r"[\w./]+", key) or "/" not in key or not re.fullmatch(r"[\w./ ,()%'=+-]+", key):
        return plain_name(key)
    *others, last = key.split("/")
    run, comma, rest = last.partition(", ")
    return f"{RUNS.get(run) or plain_name(run)}{comma}{plain_name(rest)} ({', '.join(map(plain_name, others))})"


def versus(left: str, right: str) -> str:
    """Two runs in display names; a column that both share is said once.

    >>> versus("motion_ring_0.3/deprl", "motion_ring_0.3/dpsgd")
    'DePRL against D-PSGD (motion, ring, 0.3)'
    >>> versus("motion, τ = 5/local", "motion, τ = 1/local")
    'Local (motion, τ = 5) against Local (motion, τ = 1)'
    """
    left_column, _, left_run = left.rpartition("/")
    right_column, _, right_run = right.rpartition("/")
    if left_column and left_column == right_column:
        return f"{plain_name(left_run)} against {plain_name(right_run)} ({plain_name(left_column)})"
    return f"{plain_key(left)} against {plain_key(right)}"


def _named(key: str) -> str:
    column, _, run = key.rpartition("/")
    if "/" in column and run in ("accuracy", "gap", "loss", *MOMENTS):  # a metric of a run
        return f"{_named(column)}, {MOMENTS.get(run, run)}"
    words = (RUNS.get(run) if column else None) or _of(run)
    return f"{words} ({', '.join(filter(None, map(_of, column.split('/'))))})" if column else words


def _of(part: str) -> str:
    """The display name of one part of a key: an algorithm's label, a metric, or its tokens in words."""
    label = look(part)["label"]
    if label != part or part in METRICS | NETWORKS:
        return (METRICS | NETWORKS).get(part, label)
    tokens = part.split("_")
    if not any(token in WORDS for token in tokens):
        return part
    words = ", ".join(word for token in tokens if (word := WORDS.get(token, token)))
    return words.replace("=, ", "= ")

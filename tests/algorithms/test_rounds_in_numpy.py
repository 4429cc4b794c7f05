"""Two rounds of each algorithm with several batches per pass, against plain NumPy in float64 on the same rows."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from helpers import KEY, init, step
from reference import (
    BATCH,
    CLASSES,
    SIZES,
    THETA,
    WIDTH,
    Network,
    W,
    X,
    batches,
    descend,
    order_of,
    reference_problem,
    rows,
    slopes,
    softmax,
    weighted,
)

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.engine import ClientData, rows_of
from fedlab_lite.nn import Gaussian

pytestmark = pytest.mark.slow
LR, HEAD_LR = 0.3, 0.2
START = {"theta": THETA, "w": W}
KEYS = [jax.random.fold_in(KEY, t) for t in range(2)]


def rounds(name, clients=2, graph=None, **options):
    """The algorithm, its problem, and its states after each of two rounds."""
    problem = reference_problem(clients, graph)
    algorithm = make_algorithm(name, **{"lr": LR, "batch_size": 2, "epochs": 2} | options)
    states = [init(algorithm, problem)]
    for key in KEYS:
        states.append(step(algorithm, problem, states[-1], jnp.arange(clients), key))
    return algorithm, problem, states[1:]


def close(got, want, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(got), want, rtol=tolerance, atol=tolerance)


def of(key, client):
    """The key of a client."""
    return jax.random.fold_in(key, client)


# --- one model, or one shared body ------------------------------------------------------------------------------------


def test_fedavg():
    _, _, states = rounds("fedavg", momentum=0.5, weight_decay=0.1)
    p = START
    for key, state in zip(KEYS, states, strict=True):
        new = [
            descend(p, p, i, batches(of(key, i), SIZES[i], epochs=2), LR, momentum=0.5, weight_decay=0.1)
            for i in range(2)
        ]
        p = {part: weighted([each[part] for each in new]) for part in p}
        close(state["params"]["representation"]["theta"], p["theta"])
        close(state["params"]["head"]["w"], p["w"])


def test_fedbabu_and_its_tuning():
    algorithm, problem, states = rounds("fedbabu", ft_epochs=2)
    p = START
    for key, state in zip(KEYS, states, strict=True):
        new = [descend(p, ["theta"], i, batches(of(key, i), SIZES[i], epochs=2), LR)["theta"] for i in range(2)]
        p = p | {"theta": weighted(new)}
        close(state["params"]["representation"]["theta"], p["theta"])
        close(state["params"]["head"]["w"], W)
    own = algorithm.models(problem, states[-1], KEY)[0]
    for i in range(2):
        tuned = descend(p, p, i, batches(of(KEY, i), SIZES[i], epochs=2), LR)
        close(own["representation"]["theta"][i], tuned["theta"])
        close(own["head"]["w"][i], tuned["w"])


def test_fedrod():
    """The balanced softmax counts a client's rows per class; client 1 has none of class 2."""
    _, _, states = rounds("fedrod")
    p, own = START, [W, W]
    for key, state in zip(KEYS, states, strict=True):
        new = []
        for i in range(2):
            counts = np.bincount(rows(i)[1], minlength=CLASSES)
            log_rows = np.log(np.maximum(counts, np.finfo(np.float32).tiny))

            def slope(both, x, y, log_rows=log_rows):
                features = both["theta"] * x
                wrong = softmax(features @ (both["w"] + both["own"])) - np.eye(CLASSES)[y]
                return slopes(both, x, y, log_rows) | {"own": features.T @ wrong / len(x)}

            parts = ["theta", "w", "own"]
            new.append(descend(p | {"own": own[i]}, parts, i, batches(of(key, i), SIZES[i], epochs=2), LR, slope))
        p, own = {part: weighted([each[part] for each in new]) for part in p}, [each["own"] for each in new]
        close(state["params"]["representation"]["theta"], p["theta"])
        close(state["params"]["head"]["w"], p["w"])
        close(state["personal"]["w"], own)


def test_fedrods_newcomers_train_their_head_in_the_sum():
    algorithm, problem, states = rounds("fedrod", join_epochs=2)
    shared, both = algorithm.join(problem, states[-1], KEY)[""][1], algorithm.join(problem, states[-1], KEY)[""][0]
    theta, w = (np.asarray(shared[part][name], float) for part, name in (("representation", "theta"), ("head", "w")))
    for i in range(2):

        def slope(p, x, y):
            wrong = softmax(theta * x @ (w + p["own"])) - np.eye(CLASSES)[y]
            return {"own": (theta * x).T @ wrong / len(x)}

        want = descend({"own": w}, ["own"], i, batches(of(KEY, i), SIZES[i], epochs=2), LR, slope)["own"]
        close(both["personal"]["w"][i], want)


def test_knn_per_votes_among_the_rows_of_its_client():
    """(1 - mix) softmax + mix times the votes exp(-distance) of the k nearest features, after a round as FedAvg's."""
    algorithm, problem, states = rounds("knn_per", k=2, mix=0.3)
    own, shared = algorithm.models(problem, states[-1], KEY)
    assert not own
    theta, w = np.asarray(shared["representation"]["theta"], float), np.asarray(shared["head"]["w"], float)
    for i in range(2):
        x, y = rows(i)
        queries = X[2, :4]
        gaps = np.linalg.norm((queries[:, None] - x[None]) * theta, axis=-1)
        votes = np.zeros((4, CLASSES))
        for q, gap in enumerate(gaps):
            nearest = np.argsort(gap)[:2]
            np.add.at(votes[q], y[nearest], np.exp(-gap[nearest]) / np.exp(-gap[nearest]).sum())
        train = ClientData(*rows_of((problem.data.x, problem.data.y, problem.data.size), i))
        said = algorithm.predictor()(problem, shared, train)(jnp.float32(queries))[0]
        close(np.exp(said), 0.3 * votes + 0.7 * softmax(theta * queries @ w), 1e-4)


# --- a shared body and heads ------------------------------------------------------------------------------------------


def test_fedrep():
    _, _, states = rounds("fedrep", head_epochs=1)
    theta, heads = THETA, [W, W]
    for key, state in zip(KEYS, states, strict=True):
        new = []
        for i in range(2):
            head_key, body_key = jax.random.split(of(key, i))
            p = {"theta": theta, "w": heads[i]}
            p = descend(p, ["w"], i, batches(head_key, SIZES[i], epochs=1), LR)
            heads[i] = p["w"]
            new.append(descend(p, ["theta"], i, batches(body_key, SIZES[i], epochs=2), LR)["theta"])
        theta = weighted(new)
        close(state["theta"]["theta"], theta)
        close(state["heads"]["w"], heads)


@pytest.mark.parametrize("server", ["mean", "argmin"])
def test_fedeq(server):
    rho = 0.5
    _, _, states = rounds("fedeq", head_epochs=1, rho=rho, dual_scale=0.0, server=server)
    theta, heads, duals = THETA, [W, W], [np.zeros(WIDTH)] * 2
    for key, state in zip(KEYS, states, strict=True):
        own = []
        for i in range(2):
            w_key, theta_key = jax.random.split(of(key, i))
            p = {"theta": theta, "w": heads[i]}
            p = descend(p, ["w"], i, batches(w_key, SIZES[i], epochs=1), LR)
            heads[i] = p["w"]

            def slope(p, x, y, dual=duals[i], theta=theta):
                return {"theta": slopes(p, x, y)["theta"] + dual + rho * (p["theta"] - theta)}

            own.append(descend(p, ["theta"], i, batches(theta_key, SIZES[i], epochs=2), LR, slope)["theta"])
            duals[i] = duals[i] + rho * (own[i] - theta)
        theta = (
            np.mean(own, 0) if server == "mean" else np.mean([t + d / rho for t, d in zip(own, duals, strict=True)], 0)
        )
        close(state["theta"]["theta"], theta)
        close(state["heads"]["w"], heads)
        close(state["duals"]["theta"], duals)


def pac_statistics(theta, i):
    """pi_k, pi_k mean(z | k), and V_i."""
    x, y = rows(i)
    z = theta * x
    shares = np.array([np.mean(y == k) for k in range(CLASSES)])
    means = np.array([z[y == k].sum(0) / len(x) for k in range(CLASSES)])
    return shares, means, (np.square(z).sum() / len(x) - np.square(means).sum()) / len(x)


@pytest.mark.parametrize("classes", [3, 2])
def test_fedpac(classes, monkeypatch):
    """The first round without, the second with the term that draws features to prototypes, known for all or for two."""
    monkeypatch.setattr(reference, "Y", np.minimum(reference.Y, classes - 1))
    _, _, states = rounds("fedpac", head_epochs=1, head_lr=HEAD_LR, penalty=0.7)
    theta, heads, prototypes, known = THETA, [W, W], np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES, bool)
    for key, state in zip(KEYS, states, strict=True):
        before = [pac_statistics(theta, i) for i in range(2)]
        bodies, new = [], []
        for i in range(2):
            head_key, body_key = jax.random.split(of(key, i))
            p = descend({"theta": theta, "w": heads[i]}, ["w"], i, batches(head_key, SIZES[i], epochs=1), HEAD_LR)
            new.append(p["w"])
            own = before[i][1] / np.maximum(before[i][0], 1e-9)[:, None]
            targets, pull = np.where(known[:, None], prototypes, own), 0.7 * known.any()

            def slope(p, x, y, targets=targets, pull=pull):
                gap = p["theta"] * x - targets[y]
                return {"theta": slopes(p, x, y)["theta"] + pull * 2 * (gap * x).mean(0) / WIDTH}

            bodies.append(descend(p, ["theta"], i, batches(body_key, SIZES[i], epochs=2), LR, slope)["theta"])
        after = [pac_statistics(body, i) for i, body in enumerate(bodies)]
        counts = weighted([shares for shares, *_ in after])[:, None]
        known = counts[:, 0] > 0
        assert known.sum() == classes
        prototypes = weighted([means for _, means, _ in after]) / np.maximum(counts, 1e-9)
        gap, total = np.square(before[0][1] - before[1][1]).sum(), before[0][2] + before[1][2]
        taken = [before[i][2] / (total + gap) for i in range(2)]  # of the other's head, in closed form
        heads = [(1 - taken[i]) * new[i] + taken[i] * new[1 - i] for i in range(2)]
        theta = weighted(bodies)
        close(state["theta"]["theta"], theta)
        close(state["heads"]["w"], heads)
        close(state["prototypes"], prototypes)


@dataclass(frozen=True)
class GaussianNetwork(Network):
    """z has the mean theta * x and the deviations s; training looks at draws of z."""

    def init(self, key):
        params = super().init(key)
        return params | {"representation": params["representation"] | {"s": jnp.float32(DEVIATIONS)}}

    def represent(self, params, x, *, key=None, budget=None):
        body = params["representation"]
        return Gaussian(body["theta"] * x, jnp.broadcast_to(body["s"], x.shape))

    def classify(self, head, features, *, key=None):
        mean, deviation = features
        return (mean if key is None else mean + deviation * jax.random.normal(key, mean.shape)) @ head["w"]


DEVIATIONS = np.array([0.8, 0.5, 1.1])


@pytest.mark.parametrize("weight", [None, [3.0, 0.5]])
def test_fedcr(weight):
    """Three draws of z per step; a client's product of Gaussians counts once, whatever its weight in the average."""
    problem = replace(
        reference_problem(), model=GaussianNetwork(), weight=None if weight is None else jnp.array(weight)
    )
    algorithm = make_algorithm("fedcr", lr=LR, batch_size=BATCH, epochs=2, beta=0.2, samples=3)
    state = init(algorithm, problem)
    theta, s, heads = THETA, DEVIATIONS, [W, W]
    prior = np.zeros((CLASSES, WIDTH)), np.ones((CLASSES, WIDTH))
    for key in KEYS:
        thetas, deviations, precision, moments = [], [], np.zeros((CLASSES, WIDTH)), np.zeros((CLASSES, WIDTH))
        for i in range(2):
            p = {"theta": theta, "s": s, "w": heads[i]}
            for places, step_key in batches(of(key, i), SIZES[i], epochs=2):
                p = cr_step(p, X[i, places], reference.Y[i, places], jax.random.split(step_key, 3), prior)
            heads[i] = p["w"]
            thetas.append(p["theta"])
            deviations.append(p["s"])
            x, y = rows(i)
            for k in range(CLASSES):
                precision[k] += np.sum(y == k) / p["s"] ** 2
                moments[k] += (p["theta"] * x[y == k]).sum(0) / p["s"] ** 2
        theta, s = (weighted(each, weight or (1, 1)) for each in (thetas, deviations))
        prior = moments / (1 + precision), 1 / np.sqrt(1 + precision)
        state = step(algorithm, problem, state, jnp.arange(2), key)
        close(state["theta"]["theta"], theta)
        close(state["theta"]["s"], s)
        close(state["heads"]["w"], heads)
        close(state["prior"].mean, prior[0])
        close(state["prior"].deviation, prior[1])


def cr_step(p, x, y, keys, prior, beta=0.2):
    """A step on the mean cross-entropy of the draws plus beta KL(r_y || encoder)."""
    found = {part: np.zeros_like(value) for part, value in p.items()}
    for key in keys:
        draw = np.asarray(jax.random.normal(key, (BATCH, WIDTH)), float)[: len(x)]
        z = p["theta"] * x + p["s"] * draw
        wrong = (softmax(z @ p["w"]) - np.eye(CLASSES)[y]) / len(x) / len(keys)
        by_z = wrong @ p["w"].T
        for part, slope in (("theta", (x * by_z).sum(0)), ("s", (draw * by_z).sum(0)), ("w", z.T @ wrong)):
            found[part] += slope
    gap = p["theta"] * x - prior[0][y]
    found["theta"] += beta * (x * gap / p["s"] ** 2).mean(0)
    found["s"] += beta * (1 / p["s"] - (prior[1][y] ** 2 + gap**2) / p["s"] ** 3).mean(0)
    return {part: p[part] - LR * found[part] for part in p}


# --- FedReCo ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "sum"},
        {"gradient": "full"},
        {"gradient": "full", "loss": "sum"},
        {"steps": 3, "head_steps": 2},
        {"variance_reduction": "regulariser"},
        {"variance_reduction": "regulariser", "loss": "sum", "steps": 3},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "plain",
)
def test_fedreco(options):
    penalty, server_lr = 0.8, 0.4
    _, _, states = rounds("fedreco", penalty=penalty, server_lr=server_lr, head_lr=HEAD_LR, head_epochs=1, **options)
    summed, reduced = options.get("loss") == "sum", "variance_reduction" in options
    body = {"steps": 3} if "steps" in options else {"epochs": 2}
    head = {"steps": 2} if "head_steps" in options else {"epochs": 1}
    u_0, own, heads = THETA, [THETA, THETA], [W, W]

    def pull(u, x):
        """The slope of the mean of ||(u - u_0) x||^2 by u."""
        return 2 * (u - u_0) * np.square(x).mean(0)

    for key, state in zip(KEYS, states, strict=True):
        sent = []
        for i in range(2):
            client_key, batch_key = jax.random.split(of(key, i))
            v_key, u_key = jax.random.split(client_key)
            p = {"theta": own[i], "w": heads[i]}
            p = descend(p, ["w"], i, batches(v_key, SIZES[i], **head), HEAD_LR)
            heads[i] = p["w"]

            def slope(p, x, y, anchor=own[i], i=i):
                by_u = pull(p["theta"], x)
                if reduced:
                    by_u = by_u - pull(anchor, x) + pull(anchor, rows(i)[0])
                return {"theta": slopes(p, x, y)["theta"] + penalty / 2 * (len(x) if summed else 1) * by_u}

            own[i] = descend(p, ["theta"], i, batches(u_key, SIZES[i], **body), LR, slope)["theta"]
            x = rows(i)[0] if reduced or options.get("gradient") == "full" else X[i, order_of(batch_key, SIZES[i])[:2]]
            sent.append(-pull(own[i], x) * (len(x) if summed else 1))
        u_0 = u_0 - server_lr * np.mean(sent, 0)
        close(state["theta"]["theta"], u_0)
        close(state["thetas"]["theta"], own)
        close(state["heads"]["w"], heads)


# --- without a server -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["train_first", "mix_first"])
@pytest.mark.parametrize("single", [False, True])
def test_deprl(order, single):
    """Passes, or single steps, on a star of three workers with the same heads at first."""
    lengths = {"steps": 1, "head_steps": 2} if single else {"epochs": 2, "head_epochs": 1}
    options = {"head_lr": HEAD_LR, "order": order, "start": "same"} | lengths
    _, problem, states = rounds("deprl", 3, "star", **options)
    body, head = ({"steps": 1}, {"steps": 2}) if single else ({"epochs": 2}, {"epochs": 1})
    P = np.asarray(problem.graph.metropolis, float)
    thetas, heads = np.array([THETA] * 3), [W] * 3
    for key, state in zip(KEYS, states, strict=True):
        if order == "mix_first":
            thetas = P @ thetas
        new = []
        for i in range(3):
            head_key, body_key = jax.random.split(of(key, i))
            p = descend({"theta": thetas[i], "w": heads[i]}, ["w"], i, batches(head_key, SIZES[i], **head), HEAD_LR)
            heads[i] = p["w"]
            new.append(descend(p, ["theta"], i, batches(body_key, SIZES[i], **body), LR)["theta"])
        thetas = np.array(new) if order == "mix_first" else P @ np.array(new)
        close(state["thetas"]["theta"], thetas)
        close(state["heads"]["w"], heads)


@pytest.mark.parametrize("order", ["together", "mix_first"])
def test_dpsgd(order):
    _, problem, states = rounds("dpsgd", 3, "star", order=order)
    P = np.asarray(problem.graph.metropolis, float)
    own = {part: np.array([START[part]] * 3) for part in START}
    for key, state in zip(KEYS, states, strict=True):
        mixed = {part: np.einsum("ij,j...->i...", P, own[part]) for part in own}
        at, length = (mixed, {"epochs": 2}) if order == "mix_first" else (own, {"steps": 1})
        new = [
            descend({part: at[part][i] for part in at}, START, i, batches(of(key, i), SIZES[i], **length), LR)
            for i in range(3)
        ]
        trained = {part: np.array([each[part] for each in new]) for part in own}
        own = trained if order == "mix_first" else {part: mixed[part] + trained[part] - own[part] for part in own}
        close(state["client_params"]["representation"]["theta"], own["theta"])
        close(state["client_params"]["head"]["w"], own["w"])


def largest(values, count):
    """Which are the `count` largest of an array."""
    found = np.zeros(values.size, bool)
    found[np.argsort(-values.ravel(), kind="stable")[:count]] = True
    return found.reshape(values.shape)


def test_dispfl():
    """On a star: masks move by gradients, ever less until the horizon; averages are over those who hold a number."""
    problem = reference_problem(3, "star")
    algorithm = make_algorithm("dispfl", lr=LR, batch_size=BATCH, epochs=2, density=0.5, horizon=4)
    state = init(algorithm, problem)
    closed = np.asarray(problem.graph.adjacency) + np.eye(3)
    kept = {"theta": 2, "w": 4}  # of 3 and 9 numbers: shares of 2/3 and 4/9
    play = jax.jit(lambda state, index, key: algorithm.round(problem, state, problem.at(index, jnp.arange(3), key)))

    def flat(tree):
        return {"theta": np.asarray(tree["representation"]["theta"]), "w": np.asarray(tree["head"]["w"])}

    masks = following = flat(state["masks"])
    own = {part: START[part] * masks[part] for part in START}
    for index, renewed in ((0, 0.5), (2, 0.25), (4, 0.0), (5, 0.0)):
        key = jax.random.fold_in(KEY, index)
        holders = {part: np.einsum("ij,j...->i...", closed, masks[part]) for part in own}
        sums = {part: np.einsum("ij,j...->i...", closed, own[part]) for part in own}
        masks = following
        own = {part: sums[part] / np.maximum(holders[part], 1) * masks[part] for part in own}
        new, following = [], {part: [] for part in own}
        for i in range(3):
            train_key, batch_key, _ = jax.random.split(of(key, i), 3)
            mask = {part: masks[part][i] for part in masks}
            p = {part: own[part][i] for part in own}
            for places, _ in batches(train_key, SIZES[i], epochs=2):
                found = slopes(p, X[i, places], reference.Y[i, places])
                p = {part: (p[part] - LR * found[part]) * mask[part] for part in p}
            new.append(p)
            places = order_of(batch_key, SIZES[i])[:BATCH]
            wanted = slopes(p, X[i, places], reference.Y[i, places])
            for part, count in kept.items():
                leave = int(np.ceil(renewed * count))
                stay = largest(np.where(mask[part], np.abs(p[part]), -1), count - leave)
                following[part].append(stay | largest(np.where(stay, -1, np.abs(wanted[part])), leave))
        own = {part: np.array([p[part] for p in new]) for part in own}
        following = {part: np.array(each) for part, each in following.items()}
        state = play(state, index, key)
        for part in own:
            close(flat(state["client_params"])[part], own[part])
            np.testing.assert_array_equal(flat(state["next_masks"])[part], following[part])
            assert (following[part] != masks[part]).any() == (renewed > 0) or part == "theta"


@pytest.mark.parametrize("name", ["dec_fedavg", "dec_fedprox", "dfedavgm", "dfedadmm"])
def test_devices_that_average_with_their_neighbours(name):
    options = {"dec_fedprox": {"prox": 0.3}, "dfedavgm": {"momentum": 0.6}, "dfedadmm": {"theta": 0.4}}.get(name, {})
    _, problem, states = rounds(name, 3, "star", beta=0.3, **options)
    M = np.asarray(problem.graph.neighbour_mean, float)
    start = np.concatenate([THETA, W.ravel()])  # all params in a row
    own = received = np.array([start] * 3)
    duals = np.zeros_like(own)

    def parted(row):
        return {"theta": row[:WIDTH], "w": row[WIDTH:].reshape(WIDTH, CLASSES)}

    def joined(p):
        return np.concatenate([p["theta"], p["w"].ravel()])

    for key, state in zip(KEYS, states, strict=True):
        new = []
        for i in range(3):

            def slope(p, x, y, i=i, own=own, received=received, duals=duals):
                row = joined(slopes(p, x, y))
                if name == "dec_fedprox":
                    row = row + 2 * 0.3 * (joined(p) - received[i])
                if name == "dfedadmm":
                    row = row + duals[i] + 0.4 * (joined(p) - own[i])
                return parted(row)

            steps, momentum = batches(of(key, i), SIZES[i], epochs=2), options.get("momentum", 0)
            new.append(joined(descend(parted(own[i]), START, i, steps, LR, slope, momentum=momentum)))
        sent = np.array(new)
        if name == "dfedadmm":
            duals = duals + 0.4 * (sent - own)
            sent = sent + duals / 0.4
        received = M @ sent
        own = 0.7 * sent + 0.3 * received
        params = state["client_params"]
        for i in range(3):
            close(params["representation"]["theta"][i], parted(own[i])["theta"], 1e-4)
            close(params["head"]["w"][i], parted(own[i])["w"], 1e-4)


# --- newcomers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["deprl", "fedpac", "fedrep"])
def test_a_newcomers_head_is_trained_with_the_step_size_of_heads(name):
    """On the mean of all phi_i (DePRL), or on the shared body; FedRep has one step size."""
    options = {} if name == "fedrep" else {"head_lr": HEAD_LR}
    options |= {"order": "mix_first"} if name == "deprl" else {}  # so that the workers differ at the end of a round
    graph = "star" if name == "deprl" else None
    algorithm, problem, states = rounds(name, 3, graph, join_epochs=2, **options)
    own, shared = algorithm.join(problem, states[-1], KEY)[""]
    theta = (
        np.asarray(states[-1]["thetas"]["theta"], float).mean(0) if name == "deprl" else states[-1]["theta"]["theta"]
    )
    close(shared["representation"]["theta"], theta)
    for i in range(3):
        steps = batches(of(KEY, i), SIZES[i], epochs=2)
        p = {"theta": np.asarray(theta, float), "w": W}
        close(own["head"]["w"][i], descend(p, ["w"], i, steps, LR if name == "fedrep" else HEAD_LR)["w"])


@pytest.mark.parametrize("name", ["dec_fedavg", "dpsgd", "dispfl"])
def test_a_newcomer_without_a_server_trains_as_the_others_do(name):
    """Momentum, weight decay and clipping are those of the algorithm."""
    algorithm, problem, states = rounds(name, 3, "ring", join_epochs=2, momentum=0.5, weight_decay=0.2)
    own = algorithm.join(problem, states[-1], KEY)[""][0]
    params = states[-1]["client_params"]
    start = {"theta": params["representation"]["theta"], "w": params["head"]["w"]}
    start = {part: np.asarray(value, float).mean(0) for part, value in start.items()}
    for i in range(3):
        steps = batches(of(KEY, i), SIZES[i], epochs=2)
        want = descend(start, start, i, steps, LR, momentum=0.5, weight_decay=0.2)
        close(own["representation"]["theta"][i], want["theta"])
        close(own["head"]["w"][i], want["w"])

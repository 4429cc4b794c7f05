"""Lessons 4 to 6 of the course: right answers in several styles, and wrong ones with words of what they are told."""

import pytest
from answers import Answers, tried

MISS = """
a, c = np.array([1.0, 4.0]), np.array([0.0, 1.0])
left = (1 - lr * a) ** steps
weight = {}
return {}
"""
GAP = "abs(weight @ c / weight.sum() - 0.8)"
CORRECTED = """
thetas = np.tile(theta, (num_clients, 1))
own = gradients(thetas)
for _ in range({}):
    thetas = thetas - lr * (gradients(thetas){})
return {}
"""
MEAN = "thetas.mean(0)"
SCAFFOLD = " - own + own.mean(0)"
COUNTED = "np.bincount(labels.ravel())"
LEAD = """
each = {}
return {}, {}
"""
SEEDS = "(left - right).mean(0)"
ERROR = "each.std(ddof=1) / np.sqrt(len(each))"
UNPAIRED = "(left - right).mean(), np.hypot(*(x.mean(0).std(ddof=1) / np.sqrt(x.shape[1]) for x in (left, right)))"
MEANS = "{{name: {} for name, a in stacked.items()}}"
TILED = "np.tile(a.mean(0), (len(a),) + (1,) * (a.ndim - 1))"

ANSWERS = {
    "check_bytes": Answers(
        4,
        right=[
            "2 * 4 * num_params * cohort_size * num_rounds",
            "8.0 * num_rounds * cohort_size * num_params",
            "np.array(8 * num_params * cohort_size * num_rounds)",
            "total = 0\nfor _ in range(num_rounds):\n    for _ in range(cohort_size):\n"
            "        total += 2 * 4 * num_params\nreturn total",
        ],
        wrong={
            "4 * num_params * cohort_size * num_rounds": "down",
            "64 * num_params * cohort_size * num_rounds": "bits",
            "8 * num_params * num_rounds": "each of the cohort",
            "8 * num_params * cohort_size": "one round",
            "16 * num_params * cohort_size * num_rounds": "single precision",
            "2 * num_params * cohort_size * num_rounds": "each has 4 bytes",
            "8 * (num_params + cohort_size + num_rounds)": "not",
            "8_000_000": "not",
            "f'{8 * num_params * cohort_size * num_rounds}'": "type str",
            "total = 8 * num_params * cohort_size * num_rounds": "returned nothing",
        },
    ),
    "check_miss": Answers(
        4,
        right=[
            MISS.format("1 - left", GAP),
            MISS.format("1 - left", f"jnp.asarray({GAP})"),
            "first, second = 1 - (1 - lr) ** steps, 1 - (1 - 4 * lr) ** steps\n"
            "return abs(second / (first + second) - 4 / 5)",
            "theta = 0.0\nfor _ in range(4000):\n    a, b = theta, theta\n    for _ in range(min(steps, 100)):\n"
            "        a, b = a - lr * a, b - 4 * lr * (b - 1)\n    theta = (a + b) / 2\nreturn np.abs(theta - 0.8)",
        ],
        wrong={
            MISS.format("left", GAP): "what was walked",
            MISS.format("1 - left", "abs(weight @ c / weight.sum() - 0.5)"): "mean of c",
            MISS.format("1 - left", "weight @ c / weight.sum() - 0.8"): "not negative",
            MISS.format("1 - left", "weight @ c / weight.sum()"): "the place, not the distance",
            MISS.format("a * (1 - left)", GAP): "1 - M alone",
            MISS.format("1 - (1 - lr * a)", GAP): "not",
            MISS.format("1 - left", "abs(weight * c / weight.sum() - 0.8)"): "shape (2,), not a number",
            MISS.format("1 - left", f"[{GAP}]"): "shape (1,), not a number",
            MISS.format("1 - left", "0") + "  # for E = 1": "not",
            MISS.format("1 - left", "").replace("return", "weight"): "returned nothing",
            "abs(theta_E - 0.8)": "NameError",
        },
    ),
    "check_fair": Answers(
        4,
        right=[
            "(shares @ steps) * (shares / steps) @ changes",
            "np.mean(steps) * (shares[:, None] * changes / steps[:, None]).sum(0)",
            "jnp.max(steps) * jnp.einsum('n,nd->d', shares / steps, changes)",
            "total = [0.0] * len(changes[0])\nfor c, p, t in zip(changes, shares, steps):\n"
            "    total = [s + max(steps) * p * x / t for s, x in zip(total, c)]\nreturn total",
        ],
        wrong={
            "shares @ changes": "at the optimum it still moves",
            "(shares / steps) @ changes": "equal steps",
            "(changes / steps[:, None]).mean(0) * steps.mean()": "at the optimum",
            "(shares * steps) @ changes / (shares @ steps)": "at the optimum",
            "(shares @ steps) * (shares / steps)[:, None] * changes": "not an array of shape (2,)",
            "changes.mean(0)": "at the optimum",
            "0 * changes[0]": "equal steps",
            "(np.ptp(steps) == 0) * (shares @ changes)": "does not move upwards",
            "changes /= steps[:, None]\nreturn (shares @ steps) * shares @ changes": "argument `changes`",
            "change = (shares @ steps) * (shares / steps) @ changes": "returned nothing",
            "shares @ changes / tau": "NameError",
        },
    ),
    "check_force": Answers(
        5,
        right=[
            "A[0] @ (c[0] - best)",
            "(A[0] @ (c[0] - best)).tolist()",
            "tuple(-gradients(np.tile(best, (num_clients, 1)))[0])",
            "jnp.asarray(A[0] @ (c[0] - best))",
        ],
        wrong={
            "A[0] @ (best - c[0])": "the sign",
            "c[0] - best": "how far",
            "-gradients(np.tile(best, (num_clients, 1))).mean(0)": "not the mean",
            "-gradients(np.tile(best, (num_clients, 1)))": "the forces of all clients",
            "A[0] @ (c[0] - first)": "not at the start",
            "A[1] @ (c[1] - best)": "another client",
            "best": "not",
            "0.5": "a number, not an array of shape (2,)",
            "np.linalg.norm(A[0] @ (c[0] - best))": "a number, not",
            "A[0] @ (c[0] - best)[:, None]": "shape (2, 1), not an array of shape (2,)",
            "'none'": "type str",
            "(..., ...)": "no answer yet",
        },
    ),
    "check_server": Answers(
        5,
        right=[
            "(rhos @ thetas + duals.sum(0)) / rhos.sum()",
            "((rhos @ thetas + duals.sum(0)) / rhos.sum()).tolist()",
            "jnp.sum(rhos[:, None] * thetas + duals, 0) / jnp.sum(rhos)",
            "np.average(thetas + duals / rhos[:, None], axis=0, weights=rhos)",
            "total = 0\nfor t, l, r in zip(thetas, duals, rhos):\n    total = total + r * t + l\n"
            "return total / sum(rhos)",
        ],
        wrong={
            "rhos @ thetas / rhos.sum()": "no say",
            "(thetas + duals / rhos[:, None]).mean(0)": "stiffer band",
            "(rhos @ thetas - duals.sum(0)) / rhos.sum()": "wrong sign",
            "(rhos @ thetas + rhos @ duals) / rhos.sum()": "add up",
            "(rhos @ thetas + duals.mean(0)) / rhos.sum()": "do not average",
            "(rhos @ thetas + duals.sum(0)) / len(rhos)": "sum of the penalties",
            "(rhos @ thetas + duals.sum()) / rhos.sum()": "not",
            "[(rhos @ thetas + duals.sum(0)) / rhos.sum()]": "shape (1, 1), not an array of shape (1,)",
            "thetas *= rhos[:, None]\nreturn (thetas.sum(0) + duals.sum(0)) / rhos.sum()": "argument `thetas`",
            "theta = (rhos @ thetas + duals.sum(0)) / rhos.sum()": "returned nothing",
            "rhos * thetas": "not",
            "(rhos @ thetas.T + duals.sum(0)) / rhos.sum()": "ValueError",
        },
    ),
    "check_corrected": Answers(
        5,
        right=[
            CORRECTED.format("steps", SCAFFOLD, MEAN),
            CORRECTED.format("steps", SCAFFOLD, f"jnp.asarray({MEAN})"),
            CORRECTED.format("steps", SCAFFOLD, f"{MEAN}.tolist()"),
            CORRECTED.format("steps", " - gradients(np.tile(best, (num_clients, 1)))", MEAN),
            "own = gradients(np.tile(theta, (num_clients, 1)))\nends = []\nfor i in range(num_clients):\n"
            "    t = theta\n"
            "    for _ in range(steps):\n        t = t - lr * (A[i] @ (t - c[i]) - own[i] + own.mean(0))\n"
            "    ends.append(t)\n"
            "return sum(ends) / num_clients",
        ],
        wrong={
            CORRECTED.format("steps", "", MEAN): "it still moves",
            CORRECTED.format("steps", " + own - own.mean(0)", MEAN): "wrong sign",
            CORRECTED.format("steps", " - own", MEAN): "no client moves",
            CORRECTED.format("1", SCAFFOLD, MEAN): "all its steps",
            CORRECTED.format("2 * steps", SCAFFOLD, MEAN): "not",
            CORRECTED.format("steps", SCAFFOLD, "thetas[0]"): "of one client",
            CORRECTED.format("steps", SCAFFOLD, "thetas"): "shape (6, 2), not an array of shape (2,)",
            "for _ in range(steps):\n    theta = theta - lr * gradients(np.tile(theta, (num_clients, 1))).mean(0)\n"
            "return theta": "once, at the end",
            "best": "not",
            "theta": "no client moves",
            CORRECTED.format("steps", SCAFFOLD, "").replace("return", ""): "returned nothing",
            CORRECTED.format("steps", " - own + mean", MEAN): "NameError",
        },
    ),
    "check_baseline": Answers(
        6,
        right=[
            f"{COUNTED}.max() / labels.size",
            f"np.array(max({COUNTED}) / labels.size)",
            "from collections import Counter\n"
            "return Counter(labels.ravel().tolist()).most_common(1)[0][1] / labels.size",
            "return max(np.mean([(each == answer).mean() for each in labels]) for answer in set(labels.ravel()))",
            "return jnp.bincount(jnp.ravel(labels)).max() / labels.size",
            "values, counts = np.unique(labels, return_counts=True)\nreturn counts.max() / counts.sum()",
        ],
        wrong={
            "(labels == 0).mean()": "need not be 0",
            "(labels == labels[0, 0]).mean()": "first label",
            "(labels == np.bincount(labels[0]).argmax()).mean()": "not of the first",
            "from scipy.stats import mode\nreturn (labels == mode(labels, axis=1).mode[:, None]).mean()": "own answer",
            "from scipy.stats import mode\nreturn mode(labels).count / len(labels)": "not a number",
            "1 / len(np.unique(labels))": "guessing",
            "np.mean([np.bincount(each).max() / len(each) for each in labels])": "own answer",
            f"{COUNTED}.max()": "a count",
            f"{COUNTED}.argmax()": "the label",
            f"{COUNTED} / labels.size": "not a number",
            f"{COUNTED}.max() / len(labels)": "not",
            "labels.sort()\nreturn np.bincount(labels.ravel()).max() / labels.size": "argument `labels`",
            f"share = {COUNTED}.max() / labels.size": "returned nothing",
        },
    ),
    "check_aggregate": Answers(
        6,
        right=[
            MEANS.format("np.broadcast_to(a.mean(0), a.shape) if name in shared else a"),
            MEANS.format(f"{TILED} if name in shared else a"),
            MEANS.format("[a.mean(0).tolist()] * len(a) if name in shared else a.tolist()"),
            MEANS.format("jnp.ones_like(a) * a.mean(0) if name in shared else jnp.asarray(a)"),
            "new = dict(stacked)\nfor name in shared:\n    new[name] = 0 * new[name] + new[name].mean(0)\nreturn new",
        ],
        wrong={
            MEANS.format("0 * a + a.mean(0)"): "only those in `shared`",
            MEANS.format("a if name in shared else 0 * a + a.mean(0)"): "personal",
            MEANS.format("a.mean(0) if name in shared else a"): "every client gets",
            MEANS.format("a.mean() if name in shared else a"): "a number, not an array",
            MEANS.format("0 * a + a.mean() if name in shared else a"): "not over all numbers",
            MEANS.format("0 * a + a.mean(0) if name == 'representation' else a"): "says which",
            "{name: 0 * stacked[name] + stacked[name].mean(0) for name in shared}": "keys",
            "for name in shared:\n    stacked[name][:] = stacked[name].mean(0)\nreturn stacked": "argument `stacked`",
            "for name in stacked:\n    stacked[name] = 0 * stacked[name] + stacked[name].mean(0)\n"
            "return stacked": "only those in",
            "stacked": "nothing was averaged",
            "list(stacked.values())": "not a dictionary",
            "new = dict(stacked)": "returned nothing",
            "stacked['body']": "KeyError",
        },
    ),
    "check_lead": Answers(
        6,
        right=[
            LEAD.format(SEEDS, "each.mean()", ERROR),
            LEAD.format("jnp.mean(jnp.asarray(left - right), axis=0)", "each.mean()", ERROR),
            LEAD.format(SEEDS, "(left - right).mean()", "np.sqrt(each.var(ddof=1) / each.size)"),
            "import statistics\neach = [sum(column) / len(column) for column in (left - right).T]\n"
            "return [statistics.mean(each), statistics.stdev(each) / len(each) ** 0.5]",
            LEAD.format(SEEDS, "np.array([each.mean()", ERROR + "])").replace(
                "return np.array([", "return np.array([", 1
            ),
        ],
        wrong={
            LEAD.format(SEEDS, "each.mean()", "each.std() / np.sqrt(len(each))"): "ddof=1",
            LEAD.format(SEEDS, "each.mean()", "each.std(ddof=1)"): "divide by a root",
            LEAD.format("(left - right).ravel()", "each.mean()", ERROR): "seeds of each client",
            LEAD.format("(left - right).mean(1)", "each.mean()", ERROR): "over seeds",
            LEAD.format("(left - right)[0]", "each.mean()", ERROR): "not the first alone",
            LEAD.format("np.median(left - right, 0)", "each.mean()", ERROR): "not",
            LEAD.format(SEEDS, "np.median(each)", ERROR): "not",
            LEAD.format("(right - left).mean(0)", "each.mean()", ERROR): "not",
            UNPAIRED: "subtract first",
            LEAD.format(SEEDS, "each.mean()", "each.std(ddof=1) / len(each)"): "not",
            "(left - right).mean()": "2 are asked for",
            LEAD.format(SEEDS, "each", ERROR): "not a number",
            "left -= right\n" + LEAD.format("left.mean(0)", "each.mean()", ERROR): "argument `left`",
            "each = (left - right).mean(0)": "returned nothing",
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name):
    assert not tried(name, ANSWERS[name])

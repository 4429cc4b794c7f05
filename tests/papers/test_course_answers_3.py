"""Lessons 7 and 8 of the course: right answers in several styles, and wrong ones with words of what they are told."""

import pytest
from answers import Answers, tried

MAX_DEGREE = """
degree = A.sum(1)
{} = {}
{}
return {}
"""
OTHERS = "A / (1 + degree.max())"
KEEP = "W = W + np.diag(1 - W.sum(1))"
TRACKED = """
new = {}
return {}
"""
STEP = "W @ w - lr * y"
CHANGE = "gradient(new) - gradient(w)"
ALIGNED = """
far = abs(first["{0}"].ravel()[:, None] - copy["{0}"].ravel())
return {1}
"""
NEAREST = "renumber(copy, far.argmin(1))"
LEAK = """
times = eta * (a / gap - 1) / (2 * rho * (1 - eta))
return {}
"""

ANSWERS = {
    "check_rounds": Answers(
        7,
        right=[
            "ceil(log(share) / log(second))",
            "np.ceil(np.log(share) / np.log(second))",
            "jnp.ceil(jnp.log(share) / jnp.log(second))",
            "t = 0\nwhile second**t > share:\n    t += 1\nreturn t",
        ],
        wrong={
            "ceil(log(share) / log(1 - second))": "gap for the eigenvalue",
            "ceil(1 / (1 - second))": "share change",
            "int(log(share) / log(second))": "round up",
            "ceil(log(share) / log(second)) + 1": "one round fewer",
            "log(share) / log(second)": "whole",
            "-ceil(log(share) / log(second))": "both logarithms",
            "ceil(log(second) / log(share))": "not",
            "[ceil(log(share) / log(second))]": "shape (1,), not a number",
            "t = ceil(log(share) / log(second))": "returned nothing",
            "ceil(log(share, second, 2))": "TypeError",
        },
    ),
    "check_max_degree": Answers(
        7,
        right=[
            MAX_DEGREE.format("W", OTHERS, KEEP, "W"),
            MAX_DEGREE.format("W", OTHERS, KEEP, "W.tolist()"),
            MAX_DEGREE.format("W", OTHERS, KEEP, "jnp.asarray(W)"),
            "n = len(A)\nmost = max(sum(row) for row in A)\n"
            "W = [[A[i, j] / (1 + most) for j in range(n)] for i in range(n)]\n"
            "for i in range(n):\n    W[i][i] = 1 - sum(W[i])\nreturn W",
        ],
        wrong={
            "(A + np.eye(len(A))) / (1 + A.sum(1, keepdims=True))": "largest degree",
            "A / (1 + A.sum(1).max())": "a row has to sum to 1",
            MAX_DEGREE.format("W", "A / degree.max()", KEEP, "W"): "keeps nothing",
            "metropolis(A)": "Metropolis",
            MAX_DEGREE.format("W", "A / len(A)", KEEP, "W"): "not all clients",
            MAX_DEGREE.format("W", "A / (1 + degree.min())", KEEP, "W"): "smallest",
            MAX_DEGREE.format("W", OTHERS, "W = W + np.eye(len(A)) / (1 + degree.max())", "W"): "not",
            MAX_DEGREE.format("W", OTHERS, KEEP, "W.sum(1)"): "not an array of shape (20, 20)",
            "A /= 1 + A.sum(1).max()\nreturn A + np.diag(1 - A.sum(1))": "argument `A`",
            MAX_DEGREE.format("W", OTHERS, KEEP, "None"): "returned nothing",
            MAX_DEGREE.format("W", "A / (1 + degree.maximum())", KEEP, "W"): "AttributeError",
        },
    ),
    "check_tracking": Answers(
        7,
        right=[
            TRACKED.format(STEP, f"new, W @ y + {CHANGE}"),
            TRACKED.format(STEP, f"[new, W @ y + {CHANGE}]"),
            TRACKED.format(f"jnp.asarray({STEP})", f"new, jnp.asarray(W @ y + {CHANGE})"),
            TRACKED.format("W @ (w - lr * y)", f"new, W @ (y + {CHANGE})"),
            "new = [sum(W[i, j] * w[j] for j in range(len(w))) - lr * y[i] for i in range(len(w))]\n"
            "return new, W @ y + gradient(np.array(new)) - gradient(w)",
        ],
        wrong={
            "W @ w - lr * gradient(w), gradient(W @ w - lr * gradient(w))": "not",
            TRACKED.format(STEP, "new, gradient(new)"): "no estimate of the mean",
            TRACKED.format(STEP, f"new, y + {CHANGE}"): "mixed, too",
            TRACKED.format(STEP, "new, W @ y + gradient(new)"): "subtract the old",
            TRACKED.format(STEP, "new, W @ y + gradient(w) - gradient(new)"): "less the old one",
            TRACKED.format("w - lr * y", f"new, W @ y + {CHANGE}"): "models have to be mixed",
            TRACKED.format("W @ w + lr * y", f"new, W @ y + {CHANGE}"): "downhill",
            TRACKED.format("W @ w - 0.05 * y", f"new, W @ y + {CHANGE}"): "not",
            TRACKED.format(STEP, f"W @ y + {CHANGE}, new"): "not",
            TRACKED.format(STEP, "new"): "20 parts; 2 are asked for",
            "old = gradient(w)\nw -= lr * y\nreturn W @ w, W @ (y + gradient(W @ w) - old)": "argument `w`",
            TRACKED.format(STEP, "") + "\n": "returned nothing",
            TRACKED.format(STEP, "new, W @ y + gradients(new) - gradients(w)"): "NameError",
        },
    ),
    "check_target": Answers(
        8,
        right=[
            "1.35",
            "0.8 - ((1 - 0.5) * 0.1 + 0.2 - 0.8)",
            "np.mean([0.6, 1.0]) - (0.5 * 0.1 + 0.2 - np.mean([0.6, 1.0]))",
            "jnp.array(1.35)",
        ],
        wrong={
            "0.7": "old multiplier",
            "1.3": "leaks away",
            "0.25": "beyond it",
            "0.95": "neighbours alone",
            "-0.55": "the new multiplier",
            "1.4": "counts, too",
            "0.8": "without the multiplier",
            "2.0": "your answer is 2, not",
            "[1.35]": "shape (1,), not a number",
            "'1.35'": "type str",
            "lambda: 1.35": "a value is asked for",
            "None": "no answer yet",
        },
    ),
    "check_aligned": Answers(
        8,
        right=[
            ALIGNED.format("b1", NEAREST),
            ALIGNED.format("b1", "dict(renumber(copy, np.array(far.argmin(1))))"),
            ALIGNED.format("W1", NEAREST),
            "place = {float(b): n for n, b in enumerate(copy['b1'])}\n"
            "return renumber(copy, jnp.array([place[float(b)] for b in first['b1']]))",
            "return renumber(copy, copy['b1'].argsort()[first['b1'].argsort().argsort()])",
        ],
        wrong={
            "copy": "the copy as it is",
            ALIGNED.format("b1", "renumber(copy, far.argmin(0))"): "other way round",
            "first | {'W2': copy['W2'], 'b2': copy['b2']}": "together",
            "renumber(copy, copy['b1'].argsort())": "order of the first",
            "first": "the first network",
            ALIGNED.format("b1", NEAREST + " | {'W2': copy['W2']}"): "together",
            ALIGNED.format("b1", NEAREST + " | {'W1': copy['W1']}"): "not",
            ALIGNED.format("b1", "far.argmin(1)"): "not a dictionary",
            ALIGNED.format("b1", "{'b1': first['b1']}"): "keys",
            ALIGNED.format("b1", "renumber(first, far.argmin(1))"): "not",
            "for name in ('W1', 'b1', 'W2'):\n    copy[name] = first[name]\nreturn copy": "argument `copy`",
            ALIGNED.format("b1", NEAREST).replace("return", "new ="): "returned nothing",
            ALIGNED.format("b3", NEAREST): "KeyError: 'b3', in line",
        },
    ),
    "check_leak": Answers(
        8,
        right=[
            LEAK.format("1.0 if times <= 2 else 1 / (times - 1)"),
            LEAK.format("jnp.minimum(1.0, 1 / jnp.maximum(times - 1, 1e-9))"),
            LEAK.format("np.clip(1 / max(times - 1, 1e-9), 0, 1)"),
            "low, high = 0.0, 1.0\nfor _ in range(60):\n    nu = (low + high) / 2\n"
            "    rests = eta * a / (eta + (1 - eta) * 2 * rho * (1 + 1 / nu))\n"
            "    low, high = (nu, high) if rests <= gap else (low, nu)\nreturn high",
        ],
        wrong={
            "0.0": "more leak would do",
            "gap / a": "share of the pull",
            "min(1, 2 * rho * (1 - eta) / (eta * (a / gap - 1)))": "proportional part",
            LEAK.format("1 / (times - 1)"): "at most 1",
            LEAK.format("max(1, 1 / (times - 1))"): "1 is the most",
            LEAK.format("1 / max(2 * times - 1, 1)"): "2 rho",
            LEAK.format("1 / max((1 - eta) * times - 1, 1)"): "1 - eta",
            LEAK.format("min(1, times - 1)"): "not",
            "1.0": "not",
            LEAK.format("[1 / max(times - 1, 1)]"): "shape (1,), not a number",
            LEAK.format("1 / max(time - 1, 1)"): "NameError",
            LEAK.format("").replace("return", ""): "returned nothing",
            "1 / 0": "ZeroDivisionError: division by zero, in line 2: `return 1 / 0`",
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name):
    assert not tried(name, ANSWERS[name])

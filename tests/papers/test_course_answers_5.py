"""Lesson 12 of the course: right answers in several styles, and wrong ones with words of what they are told."""

import pytest
from answers import Answers, tried

INSIDE = "inside = (rows[:, 0] <= most_error) & (rows[:, 1] <= most_memory)\n"
LEAST = "rows[:, 0].argmin()"
FASTEST = "np.where(inside, rows[:, 2], np.inf).argmin()"
CHOICE = INSIDE + f"return {FASTEST} if inside.any() else {LEAST}"
SYMMETRIC = "np.linalg.eigvalsh((W + W.T) / 2)"
SQUARES = "np.sum(pull(e) ** 2)"

ANSWERS = {
    "check_choose": Answers(
        12,
        right=[
            CHOICE,
            INSIDE
            + f"if not inside.any():\n    return int({LEAST})\nreturn jnp.where(inside, rows[:, 2], jnp.inf).argmin()",
            "usable = [i for i, (e, kb, ms) in enumerate(rows) if e <= most_error and kb <= most_memory]\n"
            "if usable:\n    return min(usable, key=lambda i: rows[i][2])\n"
            "return min(range(len(rows)), key=lambda i: rows[i][0])",
            INSIDE + "order = np.lexsort((rows[:, 2], ~inside))\n"
            "return order[0] if inside.any() else np.argsort(rows[:, 0])[0]",
        ],
        wrong={
            CHOICE.replace(" & (rows[:, 1] <= most_memory)", ""): "limit on memory",
            CHOICE.replace("(rows[:, 0] <= most_error) & ", ""): "limit on the error",
            CHOICE.replace("&", "|"): "limit on",
            CHOICE.replace("<=", "<"): "equal to a limit",
            "rows[:, 2].argmin()": "whatever its limits",
            INSIDE + f"return {FASTEST} if inside.any() else rows[:, 2].argmin()": "take the least error",
            LEAST: "not the most exact",
            INSIDE + "return rows[inside, 2].argmin()": "index of all rows",
            CHOICE.replace("return", "return float(rows[") + "*0 + 1, 2])": "not",
            CHOICE.replace("argmin", "min"): "not",
            CHOICE.replace("np.where", "-np.where"): "not",
            CHOICE.replace("return", "index ="): "returned nothing",
            "rows[:, 2] += 1\n" + CHOICE: "argument `rows`",
        },
    ),
    "check_margin": Answers(
        12,
        right=[
            f"1 - {SYMMETRIC}.max()",
            f"1 - {SYMMETRIC}[-1]",
            "jnp.linalg.eigvalsh(jnp.eye(len(W)) - jnp.asarray(W + W.T) / 2)[0]",
            "return float(min(np.linalg.eigvals(2 * np.eye(len(W)) - W - W.T).real)) / 2",
        ],
        wrong={
            "1 - np.linalg.norm(W, 2)": "spectral norm below 1",
            "1 - np.abs(np.linalg.eigvals(W)).max()": "do not decide",
            "1 - np.linalg.eigvals(W).real.max()": "symmetric part of W",
            f"1 - np.abs({SYMMETRIC}).max()": "no absolute values",
            "1 - np.linalg.eigvalsh(W + W.T).max()": "(W + W^T) / 2",
            f"{SYMMETRIC}.max()": "subtract it from 1",
            f"1 - {SYMMETRIC}.min()": "not the smallest",
            "1 - np.abs(W).sum(1).max()": "max-norm",
            f"max(1 - {SYMMETRIC}.max(), 0)": "cut off",
            "1 - np.linalg.eigvalsh(W).max()": "not",
            f"1 - {SYMMETRIC}": "not a number",
            f"m = 1 - {SYMMETRIC}.max()": "returned nothing",
            f"W += W.T\nreturn 1 - {SYMMETRIC}.max() / 2": "argument `W`",
        },
    ),
    "check_penalty": Answers(
        12,
        right=[
            f"sum({SQUARES} for e in probes) / probes.size",
            "np.mean([pull(e) ** 2 for e in probes])",
            "products = np.stack([pull(e) for e in probes])\nreturn (products**2).sum(1).mean() / probes.shape[1]",
            "total = 0.0\nfor e in probes:\n    v = pull(e)\n    total += v @ v / len(e)\n"
            "return jnp.asarray(total / len(probes))",
        ],
        wrong={
            f"np.mean([{SQUARES} for e in probes])": "divide by d",
            "np.mean([np.linalg.norm(pull(e)) / len(e) for e in probes])": "squared length",
            f"np.mean([{SQUARES} / np.sqrt(len(e)) for e in probes])": "not by its root",
            f"sum({SQUARES} for e in probes) / probes.shape[1]": "not their sum",
            "np.mean(pull(probes[0]) ** 2)": "not the first alone",
            "np.mean(probes**2)": "probe's own length",
            "np.mean([pull(e) @ e / len(e) for e in probes])": "trace",
            "np.mean(np.mean([pull(e) for e in probes], 0) ** 2)": "squares first",
            "np.mean(np.abs([pull(e) for e in probes]))": "absolute values",
            f"sum({SQUARES} for e in probes) / len(probes) ** 2": "not",
            "np.array([np.mean(pull(e) ** 2) for e in probes])": "not a number",
            "mean = np.mean([pull(e) ** 2 for e in probes])": "returned nothing",
            "probes *= 1.5\nreturn np.mean([pull(e) ** 2 for e in probes])": "argument `probes`",
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name):
    assert not tried(name, ANSWERS[name])

"""Lessons 1 to 3 of the course: right answers in several styles, and wrong ones with words of what they are told."""

import pytest
from answers import Answers, tried

STEPS = "np.log(eps * (1 - L) / first) / np.log(L)"
SORTED = """
size = np.sort(np.abs(row))[::-1]
t = (np.cumsum(size) - kappa) / np.arange(1, len(row) + 1)
t = max(t[np.flatnonzero(size > t)[-1]], 0)
"""
ROW = SORTED + "return np.sign(row) * np.maximum(np.abs(row) - t, 0)"
DAMPED = """
d = {}
for _ in range({}):
    z = (1 - d) * z + d * f(z)
return z
"""
BEST = "2 / (2 - low - high)"
TANGENT = """
v = 0 * z
for _ in range({}):
    v = {}
return {}
"""
PUSHED = "jax.jvp(f, (theta, z), (dtheta, v))[1]"
FORCED = "jax.jvp(lambda theta: f(theta, z), (theta,), (dtheta,))[1]"
UPHILL = "(np.outer([0] + [1] * {0}, [1] + [0] * {0}) * {1}, {2})"
Y = "[3.8] + [1.0] * 8"
D = "d = g_new - g_old\nreturn "

ANSWERS = {
    "check_steps": Answers(
        1,
        right=[
            f"int(np.ceil({STEPS}))",
            f"jnp.ceil({STEPS})",
            f"np.array(np.ceil({STEPS}))",
            "k = 0\nwhile L**k / (1 - L) * first > eps:\n    k += 1\nreturn k",
            "import math\nreturn math.ceil((math.log(eps) + math.log(1 - L) - math.log(first)) / math.log(L))",
        ],
        wrong={
            "int(np.ceil(np.log(eps / first) / np.log(L)))": "all steps after k",
            f"int({STEPS})": "round up",
            f"round({STEPS})": "not",
            STEPS: "whole number",
            "int(np.ceil(np.log(eps / (1 - L) / first) / np.log(L)))": "multiply eps",
            "int(np.ceil(np.log(eps * (1 - L)) / np.log(L)))": "first step's length",
            f"int(np.ceil({STEPS})) + 1": "one step fewer",
            f"-int(np.ceil({STEPS}))": "not",
            f"[int(np.ceil({STEPS}))]": "an array of shape (1,), not a number",
            f"str(int(np.ceil({STEPS})))": "type str",
            f"k = int(np.ceil({STEPS}))": "returned nothing",
            "int(np.ceil(L / 0))": "in line 2: `return int(np.ceil(L / 0))`",
        },
    ),
    "check_row": Answers(
        1,
        right=[
            ROW,
            ROW.replace("return", "return list(") + ")",
            "return jnp.asarray(project(jnp.asarray([row]), kappa))[0]",
            "low, high = 0.0, max(abs(row))\nif sum(abs(row)) <= kappa:\n    return row\nfor _ in range(60):\n"
            "    t = (low + high) / 2\n    long = sum(max(abs(a) - t, 0) for a in row) > kappa\n"
            "    low, high = (t, high) if long else (low, t)\n"
            "return [np.sign(a) * max(abs(a) - t, 0) for a in row]",
        ],
        wrong={
            "row * min(1, kappa / np.abs(row).sum())": "nearest",
            "np.clip(row, -kappa, kappa)": "not a single entry",
            "row.sort()\nt = 0": "argument `row`",
            "row.sort()\n" + ROW: "argument `row`",
            "row /= max(1, np.abs(row).sum() / kappa)\nreturn row": "argument `row`",
            ROW.replace(", 0)\nreturn", ", -9)\nreturn"): "has t = 0, not a negative t",
            ROW.replace("np.sign(row) *", ""): "keeps its sign",
            SORTED + "return np.maximum(size - t, 0) * np.sign(row)": "not",
            ROW + "[None]": "shape (1, 8), not an array of shape (8,)",
            ROW.replace("return", "return sum(") + ")": "a number, not an array",
            SORTED: "returned nothing",
            "row.unknown": "AttributeError",
        },
    ),
    "check_damped": Answers(
        1,
        right=[
            DAMPED.format(BEST, "num_steps"),
            DAMPED.format(BEST, "num_steps").replace("return z", "return jnp.asarray(z)"),
            f"d = {BEST}\nfor _ in range(num_steps):\n    z = z + d * (f(z) - z)\nreturn z",
            f"return orbit(lambda z: z - {BEST} * (z - f(z)), z, num_steps)[-1].tolist()",
        ],
        wrong={
            DAMPED.format(1, "num_steps"): "plain iteration",
            DAMPED.format("1 / (1 - low)", "num_steps"): "low end alone",
            DAMPED.format("2 / (1 - low)", "num_steps"): "low end only just fails",
            DAMPED.format(0.3, "num_steps"): "not",
            DAMPED.format(f"1 - {BEST}", "num_steps"): "swapped",
            DAMPED.format(BEST, "2 * num_steps"): "not",
            DAMPED.format(BEST, "num_steps + 1"): "one step too many",
            DAMPED.format(BEST, "20"): "not",
            DAMPED.format("2 / (2 + low + high)", "num_steps"): "not",
            DAMPED.format(BEST, "num_steps").replace("return z", "z"): "returned nothing",
            DAMPED.format(BEST, "num_steps").replace("z = (1 - d) * z +", "z *= 1 - d; z +="): "argument `z`",
            "d = 1 / 0": "in line 2: `d = 1 / 0`",
        },
    ),
    "check_slope": Answers(
        2,
        right=[
            "(1 - z**2) / (1 - w * (1 - z**2))",
            "1 / (1 / (1 - z**2) - w)",
            "jnp.asarray((1 - z**2) / (1 - w * (1 - z**2)))",
            "s = 1 - z * z\nreturn s * sum((w * s) ** k for k in range(200))",
        ],
        wrong={
            "1 - z**2": "depends on x",
            "z * (1 - z**2) / (1 - w * (1 - z**2))": "with respect to w",
            "(1 - z**2) / (1 - w)": "multiplied by the slope",
            "(1 - z**2) / (1 + w * (1 - z**2))": "wrong sign",
            "1 / (1 - w * (1 - z**2))": "inside the tanh",
            "w * (1 - z**2) / (1 - w * (1 - z**2))": "not",
            "[(1 - z**2) / (1 - w * (1 - z**2))]": "not a number",
            "slope = (1 - z**2)": "returned nothing",
            "(1 - y**2)": "NameError",
        },
    ),
    "check_tangent": Answers(
        2,
        right=[
            TANGENT.format("num_steps", PUSHED, "v"),
            TANGENT.format("num_steps", PUSHED, "list(v)"),
            TANGENT.format("num_steps", PUSHED, "np.asarray(v)"),
            TANGENT.format("num_steps", f"{FORCED} + jax.jacobian(f, 1)(theta, z) @ v", "v"),
            f"jnp.linalg.solve(jnp.eye(len(z)) - jax.jacobian(f, 1)(theta, z), {FORCED})",
            f"return solve(lambda v: {PUSHED}, z)[0]",
            f"return jax.lax.fori_loop(0, num_steps, lambda _, v: {PUSHED}, {FORCED})",
        ],
        wrong={
            FORCED: "f_theta dtheta alone",
            TANGENT.format("1", PUSHED, "v"): "f_theta dtheta alone",
            TANGENT.format("num_steps", f"{FORCED} + jax.vjp(lambda z: f(theta, z), z)[1](v)[0]", "v"): "J^T",
            TANGENT.format("num_steps", "jax.jvp(lambda z: f(theta, z), (z,), (v,))[1]", "v"): "in every step",
            TANGENT.format("num_steps", f"{FORCED} - jax.jacobian(f, 1)(theta, z) @ v", "v"): "sign of J",
            TANGENT.format("num_steps", PUSHED, f"v + {FORCED}"): "not",
            TANGENT.format("num_steps", "jax.jvp(f, (theta, z), (dtheta, v))[0]", "v"): "not",
            TANGENT.format("num_steps", PUSHED, "v[None]"): "shape (1, 3), not an array of shape (3,)",
            TANGENT.format("num_steps", PUSHED, "v").replace("return v", "v"): "returned nothing",
            TANGENT.format("num_steps", "jax.jvp(f, (theta,), (dtheta,))[1]", "v"): "in line 5: `v = jax.jvp",
        },
    ),
    "check_uphill": Answers(
        2,
        right=[
            UPHILL.format(8, -0.95, Y),
            f"({UPHILL.format(8, -0.95, Y)}[0].tolist(), np.array({Y}))",
            f"[jnp.asarray({UPHILL.format(8, -0.95, Y)}[0]), jnp.asarray({Y})]",
            UPHILL.format(30, 0.9, "np.r_[-10.0, np.ones(30)]"),
        ],
        wrong={
            UPHILL.format(3, -0.95, "[1.4, 1.0, 1.0, 1.0]"): "wide enough",
            UPHILL.format(8, 0.95, Y): "along y",
            UPHILL.format(8, -3.0, Y): "outside the ball",
            UPHILL.format(8, -0.95, f"np.array({Y})[:, None]"): "y is an array of shape (9, 1)",
            UPHILL.format(8, -0.95, "[3.8] + [1.0] * 7"): "do not fit",
            UPHILL.format(8, -0.95, "np.zeros(9)"): "not negative",
            "(-0.95 * np.eye(4), np.ones(4))": "spectral norm",
            f"{UPHILL.format(8, -0.95, Y)}[0]": "9 parts; 2 are asked for",
            "0.95": "2 are asked for",
            "'W'": "2 are asked for",
            "(np.nan * np.eye(2), np.ones(2))": "not finite",
            "lambda: 3": "a value is asked for",
        },
    ),
    "check_newest": Answers(
        3,
        right=[
            D + "-(g_old @ d) / (d @ d)",
            D + "jnp.dot(g_old, -d) / jnp.sum(d**2)",
            D + "np.array(-np.sum(g_old * d) / np.linalg.norm(d) ** 2)",
            "d = [b - a for a, b in zip(g_old, g_new)]\n"
            "return -sum(a * e for a, e in zip(g_old, d)) / sum(e * e for e in d)",
        ],
        wrong={
            D + "g_old @ d / (d @ d)": "sign",
            D + "g_new @ d / (d @ d)": "weight of the old residual",
            D + "-(g_old @ d) / np.linalg.norm(d)": "squared length",
            "-g_old / (g_new - g_old)": "one number is asked for",
            "0.5": "mean of both",
            D + "-(g_new @ d) / (d @ d)": "multiply by the old residual",
            D + "-(g_old @ d) / (g_old @ g_old)": "not",
            "g_new -= g_old\nreturn -(g_old @ g_new) / (g_new @ g_new)": "argument `g_new`",
            "[" + "-(g_old @ (g_new - g_old)) / ((g_new - g_old) @ (g_new - g_old))]": "not a number",
            "d = g_new - g_old": "returned nothing",
        },
    ),
    "check_start": Answers(
        3,
        right=[
            "outputs[-1] + (outputs[-1] - outputs[-2]) if len(outputs) > 1 else outputs[-1]",
            "if len(outputs) == 1:\n    return outputs[0]\nreturn (2 * outputs[-1] - outputs[-2]).tolist()",
            "outputs = jnp.asarray(outputs)\n"
            "return outputs[-1] + (outputs[-1] - outputs[0]) / max(len(outputs) - 1, 1)",
            "outputs[-1] + np.diff([outputs[0], *outputs][-2:], axis=0)[0]",
        ],
        wrong={
            "outputs[-1]": "the last one",
            "sum(outputs[-2:]) / len(outputs[-2:])": "mean of the last two",
            "2 * outputs[-1] - outputs[-2]": "IndexError: list index out of range, in line 2",
            "2 * outputs[-1] - outputs[0]": "one step",
            "2 * outputs[0] - outputs[1] if len(outputs) > 1 else outputs[0]": "not",
            "2 * outputs[-1] - outputs[-2] if len(outputs) > 1 else 0 * outputs[0]": "not",
            "2 * outputs[-2] - outputs[-1] if len(outputs) > 1 else outputs[0]": "not",
            "last = outputs.pop()\nreturn 2 * last - outputs[-1] if outputs else last": "argument `outputs`",
            "if len(outputs) > 1:\n    outputs[-1] += outputs[-1] - outputs[-2]\n"
            "return outputs[-1]": "argument `outputs`",
            "new = 2 * outputs[-1]": "returned nothing",
        },
    ),
    "check_matrix": Answers(
        3,
        right=[
            "0.97 * np.roll(np.eye(40), 1, axis=0)",
            "(0.97 * jnp.roll(jnp.eye(40), -1, axis=0)).tolist()",
            "0.97 * jnp.roll(jnp.eye(40), 3, axis=1)",
        ],
        wrong={
            "np.roll(np.eye(40), 1, axis=0)": "has to converge",
            "0.97 * np.eye(40)": "p finds them",
            "np.diag(np.linspace(-0.97, 0.97, 40))": "all real",
            "0.5 * np.roll(np.eye(40), 1, axis=0)": "is fast here",
            "0.97 * np.kron(np.eye(10), np.roll(np.eye(4), 1, axis=0))": "4 different places",
            "0.97 * np.roll(np.eye(39), 1, axis=0)": "shape (39, 39), not an array of shape (40, 40)",
            "0.97": "a number, not an array",
            "np.full((40, 40), np.inf)": "not finite",
            "'shift'": "type str",
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name):
    assert not tried(name, ANSWERS[name])

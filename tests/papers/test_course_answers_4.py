"""Lessons 9 and 10 of the course: right answers in several styles, and wrong ones with words of what they are told."""

import pytest
from answers import Answers, tried

STD = "2 * clip * math.sqrt(2 * math.log(1.25 / delta)) / epsilon"
CLIPPED = """
length = {}
return {{name: {} for name, leaf in message.items()}}
"""
LENGTH = "np.sqrt(sum(np.sum(leaf**2) for leaf in message.values()))"
SCALED = "leaf * min(1, clip / length)"
ROWS = """
fires = abs(db) > 1e-6
found = (dW[:, fires] / db[fires]).T
same = abs(found[:, None] - found).max(-1) < 1e-5
again = same.sum(1) > 2
return {}
"""
ONCE = "found[again & (same.argmax(1) == np.arange(len(found)))]"
FIRST = """
layers = {}
rest = {{name: layer for name, layer in layers.items() if name != "0"}}
return {}
"""
LAYERS = 'params["representation"]["layers"]'
SHARED = 'params | {"representation": params["representation"] | {"layers": rest}}'
BIAS = """
mine = np.bincount(y, minlength=num_classes) + {}
overall = np.bincount(all_y, minlength=num_classes) + {}
return {}
"""
BAYES = "average_bias + np.log(mine / mine.sum()) - np.log(overall / overall.sum())"

ANSWERS = {
    "check_std": Answers(
        9,
        right=[
            STD,
            f"np.array({STD})",
            f"jnp.asarray({STD})",
            "sensitivity = clip - -clip\nreturn sensitivity * classical(epsilon, delta)",
        ],
        wrong={
            "clip * classical(epsilon, delta)": "half of it",
            "2 * classical(epsilon, delta)": "clip counts",
            "2 * clip * 2 * math.log(1.25 / delta) / epsilon": "take the root",
            "2 * clip * math.sqrt(2 * math.log(1.25**2 / delta)) / epsilon": "divided by delta",
            "math.sqrt(2) * clip * classical(epsilon, delta)": "right angle",
            "2 * clip * classical(epsilon, delta) * epsilon": "divide by epsilon",
            "2 * clip * noise_for(epsilon, delta)": "not",
            "2 * clip * math.sqrt(math.log(1.25 / delta)) / epsilon": "not",
            f"[{STD}]": "shape (1,), not a number",
            f"sigma = {STD}": "returned nothing",
            "2 * clip * classical(epsilon)": "in line 2: `return 2 * clip * classical(epsilon)`",
        },
    ),
    "check_clip": Answers(
        9,
        right=[
            CLIPPED.format(LENGTH, SCALED),
            CLIPPED.format("np.linalg.norm(np.concatenate([leaf.ravel() for leaf in message.values()]))", SCALED),
            CLIPPED.format(LENGTH, "(leaf * clip / max(length, clip)).tolist()"),
            CLIPPED.format(
                "jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in message.values()))", "jnp.minimum(1, clip / length) * leaf"
            ),
            "if (length := math.sqrt(sum((leaf**2).sum() for leaf in message.values()))) <= clip:\n    return message\n"
            "return {name: clip / length * leaf for name, leaf in message.items()}",
        ],
        wrong={
            CLIPPED.format(LENGTH, "leaf * min(1, clip / np.linalg.norm(leaf))"): "one length",
            CLIPPED.format(LENGTH, "np.clip(leaf, -clip, clip)"): "each number",
            CLIPPED.format(LENGTH, "leaf * clip / length"): "short message",
            CLIPPED.format(LENGTH, "leaf * min(1, 1 / length)"): "need not be 1",
            CLIPPED.format(LENGTH + "**2", SCALED): "a root",
            "message": "too long",
            CLIPPED.format(LENGTH, "leaf * max(1, clip / length)"): "too long",
            "clip": "not a dictionary",
            CLIPPED.format(LENGTH, "(leaf * min(1, clip / length)).ravel()"): "not an array of shape (3, 4)",
            f"length = {LENGTH}\nfor leaf in message.values():\n    leaf *= min(1, clip / length)\n"
            f"return message": "argument `message`",
            f"length = {LENGTH}\nfor name in message:\n"
            f"    message[name] = message[name] * min(1, clip / length)": "returned nothing",
            CLIPPED.format("np.linalg.norm(list(message.values()))", SCALED): "ValueError",
        },
    ),
    "check_unblend": Answers(
        9,
        right=[
            ROWS.format(ONCE),
            ROWS.format(f"{ONCE}[::-1].tolist()"),
            ROWS.format(f"jnp.asarray({ONCE})"),
            "rows = []\nfor k in np.flatnonzero(abs(db) > 1e-6):\n    rows.append(dW[:, k] / db[k])\nkept = []\n"
            "for row in rows:\n"
            "    twins = sum(abs(row - other).max() < 1e-5 for other in rows)\n"
            "    if twins > 2 and all(abs(row - other).max() > 1e-5 for other in kept):\n        kept.append(row)\n"
            "return kept",
        ],
        wrong={
            "quotients(dW, db)": "are not rows",
            "quotients(dW, db)[:3]": "rows are found",
            ROWS.format("found[again]"): "each once",
            ROWS.format(ONCE + "[:2]"): "2 of 3",
            ROWS.format(ONCE + ".T"): "not an array of shape (any, 196)",
            ROWS.format(ONCE + ".mean(0)"): "shape (196,), not an array of shape (any, 196)",
            "dW.T[abs(db).argsort()[-3:]]": "0 of 3",
            "(dW / db).T": "not finite",
            "x[:3]": "0 of 3",
            "db[:] = 1\nreturn dW.T": "argument `db`",
            ROWS.format(ONCE).replace("return", "rows ="): "returned nothing",
            "(dW / db[:, None]).T": "ValueError",
        },
    ),
    "check_traffic": Answers(
        10,
        right=[
            "2 * 4 * (p - o) * rounds * q",
            "np.array(8 * (p - o)) * (rounds * q)",
            "jnp.asarray(8.0) * q * rounds * (p - o)",
            "return sum(8 * (p - o) for _ in range(round(q * rounds)))",
        ],
        wrong={
            "4 * (p - o) * rounds * q": "count both ways",
            "8 * p * rounds * q": "is not sent",
            "64 * (p - o) * rounds * q": "bits",
            "8 * (p - o) * rounds": "takes part",
            "8 * (p - o) * q": "one round",
            "8 * o * rounds * q": "the rest is",
            "8 * (p + o) * rounds * q": "not",
            "2 * (p - o) * rounds * q": "not",
            "800": "not",
            "{'up': 4 * (p - o) * rounds * q}": "type dict",
            "total = 8 * (p - o) * rounds * q": "returned nothing",
            "8 * (P - o) * rounds * q": "NameError",
        },
    ),
    "check_own_first": Answers(
        10,
        right=[
            FIRST.format(LAYERS, f'{SHARED}, layers["0"]'),
            FIRST.format(LAYERS, f'[{SHARED}, dict(layers["0"])]'),
            "import copy\nshared = copy.deepcopy(params)\nown = shared['representation']['layers'].pop('0')\n"
            "return shared, own",
            'body = dict(params["representation"])\nbody["layers"] = dict(body["layers"])\n'
            'own = body["layers"].pop("0")\n'
            'return {"head": params["head"], "representation": body}, own',
        ],
        wrong={
            f'own = {LAYERS}.pop("0")\nreturn params, own': "argument `params`",
            f'own = {LAYERS}["0"]\ndel {LAYERS}["0"]\nreturn params, own': "argument `params`",
            FIRST.format(LAYERS, '{"head": params["head"], "layers": rest}, layers["0"]'): "keys",
            FIRST.format(LAYERS, 'params | {"representation": {"layers": rest}}, layers["0"]'): "keys",
            FIRST.format(LAYERS, f'layers["0"], {SHARED}'): "(shared, own)",
            FIRST.format(LAYERS, f'{SHARED}, {{"0": layers["0"]}}'): "layer itself",
            FIRST.format(LAYERS, 'params, layers["0"]'): "is not shared",
            FIRST.format(LAYERS, SHARED): "2 are asked for",
            FIRST.format(LAYERS, f'{SHARED}, layers["0"]["kernel"]'): "not a dictionary",
            "split_off(params)": "owns the bias",
            FIRST.format(LAYERS, f'{SHARED}, layers["0"]').replace("return", "pair ="): "returned nothing",
            FIRST.format('params["layers"]', f'{SHARED}, layers["0"]'): "KeyError: 'layers', in line",
        },
    ),
    "check_bias_of": Answers(
        10,
        right=[
            BIAS.format(1, 1, BAYES),
            BIAS.format(1, 1, f"list({BAYES})"),
            BIAS.format(1, 1, f"jnp.asarray({BAYES})"),
            BIAS.format(1, 1, "average_bias + np.log(mine) - np.log(overall) + 3"),
            "p = [(sum(y == k) + 1) / (len(y) + num_classes) for k in range(num_classes)]\n"
            "all_p = [(sum(all_y == k) + 1) / (len(all_y) + num_classes) for k in range(num_classes)]\n"
            "return [b + math.log(m / a) for b, m, a in zip(average_bias, p, all_p)]".replace("math", "np"),
        ],
        wrong={
            BIAS.format(0, 0, BAYES): "add 1",
            BIAS.format("1e-9", "1e-9", BAYES): "add 1",
            BIAS.format(1, 0, BAYES): "not",
            BIAS.format(1, "1e-9", BAYES): "not",
            BIAS.format("1e-9", 1, BAYES): "not",
            BIAS.format(
                1, 1, "average_bias + np.log(mine / mine.sum()) - np.log(1 / num_classes)"
            ): "labels of all clients",
            BIAS.format(
                1, 1, "average_bias - np.log(mine / mine.sum()) + np.log(overall / overall.sum())"
            ): "other way round",
            BIAS.format(1, 1, "average_bias + mine / mine.sum() - overall / overall.sum()"): "logarithms",
            BIAS.format(1, 1, "np.log(mine / mine.sum()) - np.log(overall / overall.sum())"): "others' bias",
            BIAS.format(1, 1, "average_bias + np.log(mine / mine.sum())"): "labels of all clients",
            BIAS.format(1, 1, f"({BAYES}).argmax()"): "a number, not an array",
            BIAS.format(1, 1, f"({BAYES})[None]"): "shape (1, 3), not an array of shape (3,)",
            "average_bias += 1\n" + BIAS.format(1, 1, BAYES): "argument `average_bias`",
            BIAS.format(1, 1, BAYES).replace("return", "bias ="): "returned nothing",
            "np.log(np.bincount(y) + 1) - np.log(np.bincount(all_y) + 1)": "not",
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name):
    assert not tried(name, ANSWERS[name])

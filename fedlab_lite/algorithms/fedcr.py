"""FedCR: Zhang et al., "FedCR: ... Across-Client Common Representation with Conditional Mutual Information", 2023."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from fedlab_lite.algorithms.parts import PartialPersonalisation, features_of, server_step
from fedlab_lite.engine import Batch, ClientData, Problem, RoundContext, average, in_chunks
from fedlab_lite.nn import Gaussian
from fedlab_lite.util import InputError
from fedlab_lite.util.fields import ranged


def divergence(p: Gaussian, q: Gaussian) -> jax.Array:
    """The divergence KL(p || q) of diagonal Gaussians, `[B]` of `[B, latent]`, in nats.

    >>> one, two = (Gaussian(jnp.zeros((1, 1)), jnp.full((1, 1), s)) for s in (1.0, 2.0))
    >>> round(float(divergence(one, two)[0]), 4)  # (1/4 - 1 + 2 ln 2) / 2
    0.3181
    """
    ratio = jnp.square(p.deviation / q.deviation)
    return jnp.sum(ratio + jnp.square((p.mean - q.mean) / q.deviation) - 1 - jnp.log(ratio), axis=-1) / 2


@dataclass(frozen=True)
class FedCR(PartialPersonalisation):
    """A shared Gaussian encoder, one head per client, and for each class one Gaussian r_y(z) that all clients build.

    A client trains encoder and head jointly. The loss is the cross-entropy, a mean over draws of z, plus beta KL
    between r_y and the encoder's Gaussian. Besides the encoder, the client sends the product of its rows' Gaussians of
    each class. The server multiplies the clients' products and N(0, I) to get the next r_y. A client is judged with the
    mean of z, the limit of many draws (the code takes 30).

    FedCR needs a network whose features are Gaussians: `gaussian_mlp`, `gaussian_cnn5`. Its code differs in two ways.
    It takes the product of the Gaussians while the encoder is trained in the last epoch; here the product is taken
    afterwards. By default (its beta2 = 0) its r_y stay N(0, I).

    KL(r_y || encoder) is that of the code's training. The other, KL(encoder || r_y), bounds the information
    I(X; Z | Y). But a product of n Gaussians has 1/n of their variance, so the other KL would shrink the encoder's
    deviations in each round.
    """

    epochs: int = ranged(10, 1)  # passes over the client's rows per round, encoder and head together
    beta: float = ranged(1e-3, 0)  # beta, weight of the divergence
    samples: int = ranged(15, 1)  # L, draws of z in training
    server_optimizer: optax.GradientTransformation | None = None  # the server's step; None: add the mean change

    def check(self, problem: Problem) -> None:
        if problem.data.task != "classification" or not isinstance(features_of(problem), Gaussian):
            raise InputError(
                f"FedCR needs one class per row and a network with Gaussian features, but {problem.data.name} is for "
                f"{problem.data.task} and the model is {problem.model.name}; use gaussian_mlp or gaussian_cnn5"
            )

    def init(self, problem: Problem, key: jax.Array) -> dict:
        """The initial state, whose 'prior' are the r_y, `[C, latent]`: N(0, I)."""
        shape = (problem.data.num_classes, features_of(problem).mean.shape[-1])
        return super().init(problem, key) | {"prior": Gaussian(jnp.zeros(shape), jnp.ones(shape))}

    def products(self, problem: Problem, data: ClientData, theta: dict) -> dict:
        """The product of the Gaussians of a client's rows, for each class.

        Returns: 'precision' and 'weighted' mean (by precision), `[C, latent]`.
        """
        params = {"representation": theta}
        found = in_chunks(lambda x: problem.model.represent(params, x, budget=data.budget), data.x, data.size, 100)
        seen = (jnp.arange(data.y.shape[0]) < data.size)[:, None]
        members = jax.nn.one_hot(data.y, problem.data.num_classes) * seen
        precision = jnp.where(seen, jnp.square(1 / jnp.where(seen, found.deviation, 1)), 0).astype(jnp.float32)
        return {"precision": members.T @ precision, "weighted": members.T @ (precision * found.mean)}

    def client_update(
        self, problem: Problem, data: ClientData, key: jax.Array, head: dict, theta: dict, prior: Gaussian
    ) -> tuple[dict, dict]:
        """What the client sends (the change of theta, and products), and what it keeps (its head and theta_i)."""

        def loss(params: dict, batch: Batch):
            key = jax.random.fold_in(batch.key, self.samples)  # not the key of a draw: those are split off
            z = problem.model.represent(params, batch.x, key=key, budget=batch.budget)

            def draw(key):
                outputs = problem.model.classify(params["head"], z, key=key)
                return problem.mean_loss(outputs, batch.y, batch.weight)

            r_y = Gaussian(prior.mean[batch.y], prior.deviation[batch.y])
            mean = jnp.sum(divergence(r_y, z) * batch.weight) / jnp.maximum(batch.weight.sum(), 1)
            return jax.vmap(draw)(jax.random.split(batch.key, self.samples)).mean() + self.beta * mean, None

        params = {"representation": theta, "head": head}
        trained = self.train(loss, params, data, key, epochs=self.epochs, project=problem.project)
        new = trained["representation"]
        sent = {"theta": optax.tree.sub(new, theta)} | self.products(problem, data, new)
        return sent, {"heads": trained["head"], "thetas": new}

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        theta, prior = problem.downlink((state["theta"], state["prior"]))
        own = problem.take(state["heads"], at)
        sent, new = self.for_cohort(problem, self.client_update, at, own, shared=(theta, prior))
        sent, weights = problem.transmit(at, sent), problem.weights(at, jnp.ones(at.cohort.shape))
        change = average(sent.pop("theta"), weights, order=at.order())
        # r_y <- N(0, I) times the product over clients; a class without rows in the round keeps its r_y
        arrived = (weights > 0).astype(jnp.float32)  # each product counts once, whatever the client's weight
        products = average(sent, arrived, order=at.order())
        precision, weighted = (arrived.sum() * products[name] for name in ("precision", "weighted"))
        precision = jnp.maximum(precision, 0)  # a channel's noise may have made it negative
        product = Gaussian(weighted / (1 + precision), 1 / jnp.sqrt(1 + precision))
        shown = jnp.any(precision > 0, axis=1, keepdims=True)
        theta, server = server_step(self, problem, at, state, theta, change)
        prior = jax.tree.map(lambda old, new: jnp.where(shown, new, old), prior, product)
        new = problem.put_all(state, at, new)
        return state | server | {"theta": problem.model.project(theta), "prior": prior} | new

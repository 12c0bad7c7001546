"""Probability: W8, the likelihood of a mixture of Gaussians; W11, the price of an option by Monte Carlo."""

import math

import numpy as np

from ..harness import ALL, Workload

# ---- W8: GMM of ADBench (Srajer, Kukelova, Fitzgibbon, 2018), its prior included ----
#
# alphas are the logarithms of the weights; a row of icf holds a factor Q of an inverse covariance: the logarithms of
# its diagonal, then what is below it, column after column. log(det Q) is the sum of those logarithms. The prior is
# Wishart's, with GAMMA and M for every component, and with the sign that ADBench gives it.

GAMMA, M = 1.0, 0


def gmm_constant(n, d, k):
    """What depends on no parameter: of the normal densities, and of the prior."""
    degrees = d + M + 1
    log_gamma = d * (d - 1) / 4 * math.log(math.pi) + sum(math.lgamma((degrees - j) / 2) for j in range(d))
    prior = degrees * d * math.log(GAMMA / math.sqrt(2)) - log_gamma
    return -n * d / 2 * math.log(2 * math.pi) - k * prior


def gmm(ns, n, d, k):
    total, exp, logsumexp = ns.sum, ns.exp, ns.logsumexp
    constant = gmm_constant(n, d, k)

    def f(alphas, means, icf, x, index, below, one):
        logs, rest = icf[:, :d], icf[:, d:]
        diagonal, log_det = exp(logs), total(logs, 1)
        q = ns.reshape(ns.columns(icf, index), (k, d, d)) * below + diagonal[:, :, None] * one
        y = (x - means[:, None, :]) @ ns.permute(q, (0, 2, 1))
        each = (alphas + log_det)[:, None] - 0.5 * total(y * y, 2)
        likelihood = total(logsumexp(each, 0)) - n * logsumexp(alphas, 0)
        prior = 0.5 * GAMMA**2 * (total(diagonal * diagonal) + total(rest * rest)) - M * total(log_det)
        return likelihood + prior + constant

    return f


def gmm_reference(alphas, means, icf, x, index, below, one, n, d, k):
    diagonal = np.exp(icf[:, :d])
    q = icf[:, index].reshape(k, d, d) * below + diagonal[:, :, None] * one
    centred = x - means[:, None]
    y = centred @ q.transpose(0, 2, 1)
    each = (alphas + icf[:, :d].sum(axis=1))[:, None] - 0.5 * np.sum(y * y, axis=2)
    top = each.max(axis=0)
    share = np.exp(each - top)  # of the components in each point
    lse = np.log(share.sum(axis=0)) + top
    share /= share.sum(axis=0)
    weights = np.exp(alphas - alphas.max())
    log_weights = np.log(weights.sum()) + alphas.max()
    squares = np.sum(diagonal**2) + np.sum(icf[:, d:] ** 2)
    value = lse.sum() - n * log_weights + 0.5 * GAMMA**2 * squares - M * np.sum(icf[:, :d]) + gmm_constant(n, d, k)
    gy = -share[:, :, None] * y
    gq = gy.transpose(0, 2, 1) @ centred
    points = share.sum(axis=1)
    g_icf = GAMMA**2 * np.concatenate([diagonal**2, icf[:, d:]], axis=1)
    g_icf[:, :d] += np.einsum("kii->ki", gq) * diagonal + points[:, None] - M
    for i in range(d):
        for j in range(i):
            g_icf[:, index[i * d + j]] += gq[:, i, j]
    return [value, points - n * weights / weights.sum(), -(gy @ q).sum(axis=1), g_icf]


def make_gmm(rng, n, d, k):
    icf = rng.normal(size=(k, d + d * (d - 1) // 2)) / 4
    below = np.tril(np.ones((d, d)), -1)
    index = np.zeros((d, d), np.int64)  # where an element below the diagonal stands in a row of icf
    index.T[below.T > 0] = np.arange(d, icf.shape[1])
    x = rng.uniform(size=(n, d))
    return [rng.normal(size=k), rng.uniform(size=(k, d)), icf, x, index.ravel(), below, np.eye(d)]


W8 = Workload(
    "W8", "Gaussian mixture of ADBench, 1000 points, d = 10, k = 25, float64", make_gmm, gmm_reference, gmm, 3,
    size={"n": 1000, "d": 10, "k": 25}, small={"n": 7, "d": 3, "k": 4}, dtype="float64", peers=ALL, ahead=1.0, aim=2e-3,
    aim_frozen=1e-3,
)  # fmt: skip


# ---- W11: an Asian option on a basket: the mean over assets and days of geometric Brownian motions ----

YEARS, STRIKE = 1.0, 100.0


def option(ns, paths, steps, assets):
    exp, total, relu = ns.exp, ns.sum, ns.relu
    day = YEARS / steps

    def f(spot, vol, rate, z):
        drift, scale = (rate - 0.5 * vol * vol) * day, vol * math.sqrt(day)
        price, prices = spot, 0.0
        for t in range(steps):
            price = price * exp(drift + scale * z[t])
            prices = prices + price
        payoff = relu(total(prices, 0) * (1 / (steps * assets)) - STRIKE)
        return exp(-YEARS * rate) * total(payoff) * (1 / paths)

    return f


def option_reference(spot, vol, rate, z, paths, steps, assets):
    """Along a path d log(price) is dspot / spot + dvol (w - vol t) + drate t, w being the Brownian motion at t."""
    day = YEARS / steps
    times = day * np.arange(1, steps + 1)[:, None, None]
    w = np.cumsum(z, axis=0) * math.sqrt(day)
    prices = spot * np.exp((rate - vol * vol / 2) * times + vol * w)
    payoff = prices.mean(axis=(0, 1)) - STRIKE
    discount = np.exp(-YEARS * rate) / paths
    value = discount * np.sum(payoff[payoff > 0])
    held = discount * prices[:, :, payoff > 0] / (steps * assets)
    by_spot = held.sum(axis=(0, 2))[:, None] / spot
    by_vol = np.sum(held * (w[:, :, payoff > 0] - vol * times), axis=(0, 2))[:, None]
    return [value, by_spot, by_vol, np.sum(held * times) - YEARS * value]


def make_option(rng, paths, steps, assets):
    spot, vol = rng.uniform(95, 105, (assets, 1)), rng.uniform(0.15, 0.4, (assets, 1))
    common = rng.normal(size=(steps, 1, paths))
    return [
        spot,
        vol,
        np.array(0.03),
        math.sqrt(0.7) * rng.normal(size=(steps, assets, paths)) + math.sqrt(0.3) * common,
    ]


W11 = Workload(
    "W11", "Asian basket option, 50,000 paths, 20 steps, 3 assets, gradient to spot, vol and rate", make_option,
    option_reference, option, 3, size={"paths": 50_000, "steps": 20, "assets": 3},
    small={"paths": 40, "steps": 3, "assets": 2}, peers=ALL, frozen=2, ahead=1.0, aim=7e-3, aim_frozen=3e-3,
)  # fmt: skip

"""How many clusters run at once: the CTAs of a cluster stay on one GPC of the GPU.

What `cudaOccupancyMaxActiveClusters` answers depends on which SMs a chip has lost in the making.
Public is how many a GPC has at most: 18 on GH100 and 16 on GB202 (NVIDIA's whitepapers), 20 on
GB100 (CUTLASS). The rest is assumed: as few GPCs as hold the GPU's SMs, these spread evenly in
pairs. On one H100 SXM 15 clusters of 8 were seen to run at once, where this counts 16
(github.com/accel-sim/gpu-app-collection, pull request 87).
"""

from __future__ import annotations

from engine.errors import InvalidProblem

_SMS_OF_GPC = {9: 18, 10: 20, 12: 16}  # at most, by major compute capability
FIRST_CAPABILITY = (9, 0)


def sms_of_gpcs(compute_capability: tuple[int, int], num_sms: int) -> tuple[int, ...]:
    """SMs of each GPC, as assumed; one GPC of all SMs where nothing is known."""
    if (most := _SMS_OF_GPC.get(compute_capability[0])) is None:
        return (num_sms,)
    gpcs = -(-num_sms // most)
    pairs, more = divmod(num_sms // 2, gpcs)
    sizes = [2 * (pairs + (number < more)) for number in range(gpcs)]
    sizes[-1] += num_sms % 2
    return tuple(sizes)


def max_active_clusters(
    compute_capability: tuple[int, int], num_sms: int, ctas_per_sm: int, cluster_size: int
) -> int:
    """Clusters that run at once on a GPU.

    Args:
        ctas_per_sm: CTAs that an SM holds.
        cluster_size: CTAs of a cluster.

    Raises:
        InvalidProblem: such GPUs have no clusters.
    """
    if cluster_size > 1 and compute_capability < FIRST_CAPABILITY:
        raise InvalidProblem(no_clusters(compute_capability))
    return sum(
        sms * ctas_per_sm // cluster_size for sms in sms_of_gpcs(compute_capability, num_sms)
    )


def no_clusters(compute_capability: tuple[int, int]) -> str:
    """Why a GPU launches no clusters: a sentence."""
    major, minor = compute_capability
    return (
        f"Clusters of CTAs need compute capability 9.0 or newer, and this GPU has {major}.{minor}: "
        "launch each CTA on its own."
    )

"""Every term explained once: the tooltips."""

from __future__ import annotations

from engine.evaluation import Status

TERMS: dict[str, str] = {
    "gpu": "The GPU the kernel is compiled and judged for. Without it in this machine, registers "
    "and occupancy are still those of the real compile; latency is predicted.",
    "tuned": "The config that a sweep found to be the best for this GPU, this variant and problems "
    "like this one (same D, mask and format; S and B·H within a factor of two), and that was kept. "
    "The command line takes it where no values are given.",
    "variant": "An algorithm: one numbered CUDA file of the ladder.",
    "preset": "Real shapes to start from. Changing a number below makes it your own.",
    "batch": "B, sequences in one call. B × H heads are independent of each other.",
    "num_heads": "H, attention heads of each sequence.",
    "seqlen": "S, rows of Q, K and V per head. Work grows with S².",
    "seqlen_kv": "Rows of K and V per head where they are not S, as in decoding: one query (S = 1) "
    "against a long KV cache. Empty: S. Not together with Causal.",
    "head_dim": "D, width of one head.",
    "causal": "Each query sees only the keys up to its own position: half the work.",
    "dtype": "Format of Q, K, V and O. Accumulation is FP32 either way.",
    "correctness": "The kernel's output against a float64 reference. It passes when its largest "
    "error is at most twice that of PyTorch's SDPA in the same format (plus a small constant), "
    "every element was written, inputs and guard zones are untouched and a second run gives the "
    "same bits.",
    "latency": "Time of one launch on the target GPU. The badge says where it comes from: measured "
    "here, recorded in a snapshot, or predicted by a model. CPU execution time is never shown "
    "as a latency.",
    "registers": "Registers per thread and shared memory per CTA, as the real compiler gave them "
    "for the target GPU. Spilled registers live in slow local memory.",
    "occupancy": "Warps resident on a full SM out of those it could hold. The limiter is the "
    "resource that runs out first.",
    "waves": "CTAs of the launch divided by those that run at once on the whole GPU. A wave that "
    "is only begun costs as much time as a full one.",
    "sm_fill": "SMs that get at least one CTA. The rest of the GPU is idle.",
    "thread_capacity": "Threads of the launch against all threads the GPU can hold at once "
    "(SMs × threads per SM).",
    "check": "Runs the CPU build that looks for races, out-of-bounds accesses, reads of memory "
    "that was never written and barriers that not every thread reaches. Slower.",
    "schedule": "Order in which the CPU backend runs CTAs and threads. A kernel that is right in "
    "one order only has a missing barrier.",
    "seed": "Chooses the random inputs and the random schedule; the same seed gives the same "
    "numbers on every machine.",
    "inputs": "What Q, K and V hold: plain normal numbers, logits large enough to saturate the "
    "softmax, or a V that reveals which row and column was read.",
    "timeout": "The execution is stopped after this long.",
    "heads_free": "Count B × H together, with one head each: a GPU sees no difference between a "
    "further head and a further batch element.",
    "max_batch": "How far the curve goes. Batches that do not fit in memory are left out.",
    "price": "A list price; take what you pay.",
    "traffic": "A query is one query row: a launch answers B × H × S of them.",
    "utilisation": "The share of its time that a GPU is planned to be busy.",
    "arrivals": "Requests (batch elements) that come in each second, at random.",
    "budget": "What the slowest 5 % of requests may wait beyond an immediate launch.",
    "points": "Measured or recorded latencies of this variant on this GPU: to validate the "
    "prediction against, or to calibrate it on.",
    "calibrate": "Fit the model's parameters to these points. The interval shrinks to what they "
    "prove; what they say is then no proof of the model, so the leave-one-out error is shown.",
    "plateau": "The most units of work per second that any batch of the curve reaches.",
    "live": "Run again whenever the problem, the config, or the kernel's files on disk change.",
}

NEXT_STEP: dict[Status, str] = {
    Status.SKIPPED: "Choose another variant, config, problem or target GPU in the sidebar.",
    Status.COMPILE_ERROR: "Mend the line the log names and save the file; with Rerun on change "
    "switched on, it compiles again by itself.",
    Status.LAUNCH_ERROR: "Look at the log below; a smaller tile or another config may launch.",
    Status.OUT_OF_MEMORY: "Choose a smaller batch, fewer heads or a shorter sequence.",
    Status.INCORRECT: "The maps under Correctness show where it is wrong; the check build (under "
    "Execution) finds races and out-of-bounds accesses.",
    Status.CRASHED: "Run it once with the check build (under Execution): it names line, CTA and "
    "thread.",
    Status.TIMEOUT: "Look for a loop that does not end, or allow more time under Execution.",
    Status.THROTTLED: "Let the GPU cool down or lower its load, then run again.",
    Status.CANCELLED: "Run it again when you like.",
}

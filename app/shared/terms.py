"""Every term explained once: the tooltips. Keys that begin with `sweep_` are the Sweep page's."""

from __future__ import annotations

TERMS: dict[str, str] = {
    "gpu": "The GPU that the kernel is compiled for. If this machine does not have it, registers, "
    "shared memory and occupancy still come from the real compiler; latency is predicted.",
    "no_gpu": "Kernels execute on the CPU, so correctness is real. Registers and occupancy come "
    "from the real compiler, for the target GPU. Latency is predicted or recorded.",
    "tuned": "The best config of a sweep, saved for this GPU, this variant and similar problems "
    "(same D, mask and format; S and B·H within a factor of two). The command line uses it where "
    "no values are given.",
    "variant": "An algorithm: one numbered CUDA file of the ladder, or an own kernel. auto takes "
    "the fastest known variant and config for this problem and GPU, and gives the reason.",
    "auto": "Chosen by measured or recorded times of this problem on this GPU; without those, by "
    "your tuned configs; without those, by the tables that ship, ranked by simulated machine code.",
    "fork_kernel": "Copy this kernel and its headers into an own kernel that you can edit. The "
    "source "
    "tab shows how the copy differs from its parent.",
    "add_kernel": "Add your own CUDA kernel: it is checked, explained, predicted, swept and "
    "compared like those of the ladder.",
    "add_path": "A .cu file. It is compiled and run with your rights on this machine, so add only "
    "files that you trust.",
    "add_files": "Drop a .cu file with the headers that it includes. They are copied into a folder "
    "of Attune's own, compiled and run with your rights on this machine: add only what you trust.",
    "add_entry": "The kernel's name, with its namespaces. Template arguments go in <…>; "
    "{head_dim}, {causal} and {element_type} take the problem's values.",
    "add_grid": "CTAs along this axis: a number, or a formula of batch, num_heads, num_heads_kv, "
    "seqlen, seqlen_kv, head_dim and ceil_div(a, b).",
    "add_threads": "Threads of a CTA: a number, a formula, or up to three in brackets: [32, 4].",
    "add_smem": "Bytes of dynamic shared memory, the third launch parameter; 0 for a kernel "
    "without an extern __shared__ array. A number or a formula; element_bytes is 2.",
    "add_head_dims": "The values of D that the kernel supports, ascending.",
    "add_args": "One argument for each parameter: a known name in quotes, or a name, ctype and "
    "value in braces. The syntax is that of a TOML list; # starts a comment.",
    "add_scratch": "Buffers that the kernel needs besides Q, K, V, O and LSE, with their shapes.",
    "add_beside": "Into a file of the same name that ends in .attune.toml. The source is not "
    "changed.",
    "add_inside": "As a comment at the top of the source.",
    "machine_code": "The SASS that the compiler generated. Counted: instructions that all CTAs of "
    "the launch execute, found by executing their integer code and branches. Simulated: cycles, by "
    "a model of one SM with its resident CTAs. Click a line to see its instructions, or an "
    "instruction to see its line.",
    "busy_units": "Share of cycles in which each unit of an SM is busy while its CTAs are "
    "resident. A unit near 100 % is the bottleneck: only less work for it makes the kernel faster.",
    "stalls": "What warps wait for between two instructions, by Nsight Compute's stall reasons. "
    "Selected: the cycle in which a warp issues. Wait: a fixed latency set by the compiler.",
    "timeline": "Simulated timeline of one SM: what its warps execute and wait for, its tensor "
    "cores and its copies. Open the file in ui.perfetto.dev or chrome://tracing.",
    "residency": "Simulated time of the same code with more or fewer CTAs on each SM: what fewer "
    "registers or less shared memory would gain.",
    "preset": "Shapes of real models to start from. Changing a number below makes it a custom "
    "problem.",
    "batch": "B, sequences in one call. The B × H heads are independent of each other.",
    "num_heads": "H, attention heads of each sequence.",
    "seqlen": "S, sequence length: rows of Q, K and V per head. Work grows with S².",
    "num_heads_kv": "Heads of K and V if query heads share them (grouped-query attention). Empty: "
    "H. H must be a multiple of it.",
    "seqlen_kv": "Rows of K and V per head if not S, as in decoding: one query (S = 1) with a "
    "long KV cache. Empty: S. With Causal the last query sees the last key.",
    "window": "Sliding window: a query at position p sees keys j with |p − j| < this. With "
    "Causal: this many keys including its own (Mistral). Empty: no window.",
    "softcap": "Scores become X · tanh(score / X), as in Gemma 2. Empty: no softcap.",
    "alibi": "ALiBi: slope · |p − j| is subtracted from scores, with a slope for each query head "
    "(Press et al.).",
    "sinks": "Attention sinks: a logit of each query head takes part in the row sum (gpt-oss).",
    "kvfp8": "K and V in FP8 (E4M3) with a scale for each K/V head, as in a server's KV cache: "
    "half the bytes. Supported by v14 and v21.",
    "lse": "Also write LSE, the log-sum-exp of each row, which the backward pass and the merging "
    "of partial results need.",
    "seqlens": "KV length of each sequence of the batch, in place of B and KV; the last S "
    "positions of each are its queries. Or uniform:8:16:512:0: 8 lengths from 16 to 512 drawn with "
    "seed 0.",
    "backward": "The backward pass: dQ, dK and dV from Q, K, V, O, LSE and dO, by v23 to v26.",
    "head_dim": "D, width of one head.",
    "head_dim_v": "Columns of V and O if not D, as in DeepSeek (192 and 128). Empty: D.",
    "causal": "Each query attends only to keys up to its own position: half the work.",
    "dtype": "Format of Q, K, V and O. Accumulation is FP32 either way.",
    "correctness": "The kernel's output compared with a float64 reference. It passes when its "
    "largest error is at most twice that of PyTorch's SDPA in the same format (plus a small "
    "constant), every element was written, inputs and guard zones are untouched and a second run "
    "gives the same bits.",
    "latency": "Time of one launch on the target GPU. The badge says where it comes from: measured "
    "here, recorded in a snapshot, or predicted by a model. CPU execution time is never shown "
    "as a latency.",
    "prediction": "Launch floor + the slowest of SMs, L2 and DRAM + the fusion pass, if there is "
    "one.",
    "side_by_side": "Known times of this problem on this GPU: this kernel, and PyTorch's SDPA if "
    "it was timed. Lines are intervals: 95 % of a median, 90 % of a prediction.",
    "registers": "Registers per thread and shared memory per CTA, as reported by the compiler for "
    "the target GPU. Spilled registers live in slow local memory.",
    "occupancy": "Warps resident on a full SM as a share of the maximum. The limiter is "
    "the resource that runs out first.",
    "waves": "CTAs of the launch divided by the CTAs that the whole GPU runs at once. A partial "
    "wave takes as long as a full one (wave quantization).",
    "gpu_fill": "How full the GPU is: the share of all its warp slots that hold a warp with work, "
    "over all waves. It is occupancy (of a full SM) × wave efficiency (the last wave is part of a "
    "wave). Beside it: SMs that get a CTA, and the launch's threads over those that the GPU holds "
    "at once, its thread slots.",
    "thread_fill": "Thread fill: threads of the launch divided by the threads that the GPU can "
    "hold at once (its thread slots). Above 1×, the rest wait for earlier CTAs to end.",
    "thread_capacity": "Threads of the launch compared with all threads that the GPU can hold at "
    "once (SMs × threads per SM).",
    "roofline": "FLOPs of the launch (4·B·H·S·KV·D, half of it when causal) per byte that it "
    "moves, and per second. The roofs are the GPU's limits: the rate of the math unit that the "
    "kernel uses, and the bandwidth of L2 and DRAM. Bytes are modelled, of a warm launch: each "
    "CTA reads its Q and K/V rows from L2, and data that L2 does not hold come from DRAM.",
    "backend": "Host build: the source, compiled for this CPU; finds races by source line. Machine "
    "code: the SASS compiled for the target GPU, executed on this CPU; a wrong output is compared "
    "with the host build. GPU: the one in this machine. Without a GPU, tensor-core kernels of at "
    "least 1 GFLOP are executed as machine code; other kernels, and checks for races, use host "
    "builds.",
    "check": "Host build: detects races, out-of-bounds accesses, reads of uninitialized memory and "
    "barriers that not every thread reaches, marks the source lines that never ran, and adds runs "
    "on inputs with large, rising and falling scores. Machine code: finds races in shared memory "
    "by instruction and line. Slower.",
    "schedule": "Order in which the CPU backend runs CTAs and threads. A kernel that is correct "
    "in only one order lacks synchronization, for instance a barrier.",
    "seed": "Seed of the random inputs and of the random schedule; the same seed gives the same "
    "numbers on every machine.",
    "inputs": "Contents of Q, K and V. The check build adds a second run with `extreme` inputs.",
    "timeout": "The execution is stopped after this time.",
    "heads_free": "Vary B × H together instead of B: to the GPU, one more head is the same as one "
    "more batch element.",
    "max_batch": "The largest batch of the curve. Batches that do not fit in memory are left out.",
    "price": "A list price; enter what you pay.",
    "traffic": "A request is a batch element, a token one position of it, a query one query row: a "
    "launch answers B requests, B × S tokens, B × H × S queries, all of one layer.",
    "utilisation": "Planned share of the time that a GPU is busy.",
    "arrivals": "Requests (batch elements) per second, arriving at random.",
    "budget": "How much longer the slowest 5 % of requests may take than with an immediate launch.",
    "mix": "One line per problem: launches a day, B, H, S, then optionally D, causal (true or "
    "false) and dtype; or CSV with a header. Each line stands for count · B sequences a day, in "
    "batches of any size.",
    "mix_of": "Which kernels may serve all lines. auto: those that auto takes for each line, at "
    "its batch and at a large one, with any number of splits. Or the selected variant, any "
    "splits.",
    "points": "Measured or recorded latencies of this variant on this GPU, to validate the "
    "prediction or to calibrate it. Points of another source file than the variant's belong to "
    "another kernel: calibrated on them, the page describes that kernel.",
    "calibrate": "Fit the model's parameters to these points, which narrows the interval. They no "
    "longer validate the model then; the leave-one-out error is shown instead.",
    "invariance": "Executes one sequence on the CPU, alone and in batches, with CTAs in several "
    "orders and with every number of splits, and compares the bits of its output. A server whose "
    "answers must not depend on the rest of the batch needs a kernel for which they are equal.",
    "plateau": "The plateau is the highest throughput, in units of work per second, of any batch "
    "on the curve.",
    "rerun_on_change": "Run again whenever the problem, the config or the kernel's files on disk "
    "change.",
    "sweep_axis": "A list 1,2,4, a range 64:512:64, or factors 64:1024:x2. Empty: the value shown, "
    "which is the one selected on Tune.",
    "sweep_variants": "Every variant has its own tunables. Empty: the variant selected on Tune.",
    "sweep_presets": "Shapes of real models. With all axes empty, only these problems are tried.",
    "sweep_causal": "Empty: as selected on Tune.",
    "sweep_own_values": "Values of the tunables left empty here: every value that the variant "
    "offers, or its default.",
    "sweep_strategy": "Exhaustive tries every point in order, random in shuffled order. Coordinate "
    "descent improves one tunable at a time; bayesian proposes configs from the results so far; "
    "these search each variant and problem separately. Simulated tries the point with the "
    "shortest simulated time first.",
    "sweep_execute": "Execute each kernel and check its output. Off: compile, occupancy and "
    "prediction only, which is faster.",
    "sweep_on": "Empty: this machine. Otherwise the address of a Dask scheduler, for example "
    "tcp://10.0.0.5:8786, whose workers evaluate the points.",
    "sweep_full": "On a GPU: also measure baselines, cold and end-to-end time of every point. The "
    "best points are measured side by side at the end either way.",
    "sweep_rate": "Points evaluated per minute, recently.",
    "sweep_left": "Remaining time, estimated from the compile, check and simulation times so far; "
    "below it, the likely range.",
    "sweep_without": "Points that constraints exclude, and points that failed. Each is a row of "
    "the tab Not timed, with its reason.",
    "importance": "Share of the variance of times within a problem that one tunable explains by "
    "itself. The remainder is due to combinations of tunables.",
}

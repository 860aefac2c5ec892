"""Causes of planted bugs: the names of the messages that tell each, shared by the tables.

A row names a bug's cause by one of these sets, or by terms of CUDA and of the kernel; a rewording
then changes `tests/words.json` alone. The sets were not made by looking at what the bugs get. Each
stands for the words that were written with the bugs before any was run ("mask", "row sum"), and has
every message of the checker and every kind of error whose words contain one of them at the start of
a word, by these rules:

- Inflections and synonyms are one cause ("leaves out", "left out").
- The summary of a verdict, which says where the largest error is, tells no cause. Nor do words of
  order, number or amount ("first", "sum"), which messages of all causes have.
- An inner part of a message is left out if the message around it is there already.
- A message that was reworded after the bugs were written counts by its words of that time.
- Words of two sentences ("LSE" and "maximum") are both looked for in the whole of what is said.
"""

from __future__ import annotations

from engine.cuda_on_host.error_kinds import ErrorKind

Words = tuple[str | tuple[str, ...], ...]

# ---- Masks and the key loop ----
MASK: Words = (
    ErrorKind.BAD_WARP_MASK,
    "bug_causal_by_tiles",
    "bug_causal_not_asked",
    "bug_causal_wrong_way",
    "bug_diagonal_starts_wrong",
    "bug_key_too_many",
    "bug_mask_ends_at_wrong_key",
    "bug_mask_of_wrong_key",
    "bug_mask_of_wrong_row",
    "bug_misses_own_key",
    "bug_missing_tail_mask",
    "bug_no_causal_mask",
    "bug_reads_past_head",
    "bug_window_not_masked",
    "gradient_mask_from_first_key",
    "keys_masked",
    "lane_not_in_mask",
    "lane_waits_in_mask",
    "last_tile_wrong",
    "look_causal_and_mask",
    "look_first_mask",
    "look_key_and_row_of_mask",
    "look_key_of_mask",
    "look_last_mask",
    "look_mask_of_scores",
    "look_offset_of_mask",
    "look_row_and_key_of_mask",
    "look_row_of_mask",
    "look_scores_and_mask",
    "look_window_and_mask",
    "one_padded_key",
    "without_causal_mask",
)
OFF_BY_ONE: Words = (
    "bug_key_too_many",
    "bug_misses_own_key",
    "bug_window_off_by_one",
    "bug_window_right_off_by_one",
    "look_bounds_of_chunk",
    "one_padded_key",
    "rows_of_own_keys",
)
DIAGONAL: Words = (*OFF_BY_ONE, "causal", "diagonal")
VISIBLE: Words = (
    "bug_causal_loop_ends",
    "nan_of_row_sum",
    "part_without_visible_key",
    "row_without_visible_key",
)
LEFT_OUT: Words = (
    "bug_causal_loop_ends",
    "bug_key_tiles_left_out",
    "bug_keys_by_queries",
    "bug_leaving_out",
    "bug_no_first_key",
    "bug_no_last_key",
    "bug_no_partial_key_tile",
    "bug_without_first_of_every",
    "bug_without_first_of_others",
    "bug_without_last_of_every",
    "bug_without_last_of_others",
    "first_three_key_tiles",
    "first_two_key_tiles",
    "index_without_cta",
    "index_without_thread",
    "left_out_of_sum",
    "lse_largest_of_parts",
    "maximum_of_chunk",
    "offset_without_batch",
    "offset_without_head",
)
TWICE: Words = (
    ErrorKind.MBARRIER_TWICE,
    "bug_both_rescaled_twice",
    "bug_counting_twice",
    "bug_first_of_others_twice",
    "bug_k_factor_twice",
    "bug_l_rescaled_twice",
    "bug_last_of_others_twice",
    "bug_o_rescaled_twice",
    "bug_scaled_twice",
    "bug_sink_added_twice",
    "bug_v_factor_twice",
    "counts_twice",
    "diagonal_by_twice_offset",
    "factor_of_twice_columns",
    "fragments_of_k_twice",
    "fragments_of_kv_twice",
    "fragments_of_v_twice",
    "gradient_scaled_twice",
    "key_tile_of_twice_index",
    "lse_maximum_added_twice",
    "lse_sum_doubled",
    "twice_the_swizzle",
)
STEP: Words = ("look_step_of_loop",)
EVERY: Words = ("bug_out_of_pv", "bug_sink_in_every_tile", "every_second_key_tile")
FIRST_KEY: Words = (
    "bug_no_first_key",
    "first_key_for_tile",
    "first_key_tile_always",
    "first_key_tile_of_chunk",
    "gradient_mask_from_first_key",
    "look_first_maximum",
    "page_of_first_key",
)
LAST_KEY: Words = (
    "bug_last_key_tile_alone",
    "bug_no_last_key",
    "bug_reads_past_head",
    "last_key_tiles_first",
    "look_bounds_of_chunk",
    "look_first_and_last_key_tile",
    "misses_last_key_of_window",
    "nan_of_unused_page",
)
LAST_KEY_TILE: Words = (
    "bug_last_key_tile_alone",
    "bug_reads_past_head",
    "last_key_tiles_first",
    "look_first_and_last_key_tile",
)
ROUNDED_UP: Words = ("look_tiles_rounded_up", "rounded_up_to_tiles")
OTHER_TILE: Words = ("bug_another_key_tile", "key_tile_before", "key_tile_behind")
NUMBER_OF_QUERIES: Words = ("bug_keys_by_queries",)
LENGTH: Words = (
    "bug_length_of_next",
    "bug_length_of_previous",
    "bug_length_of_sequence_0",
    "bug_longest_length",
)
POSITION: Words = (
    "bug_alibi_from_row",
    "bug_window_around_row",
    "gradient_position",
    "look_window_position",
)

# ---- Softmax and the fusion ----
MAXIMUM: Words = (
    "bug_last_key_tile_alone",
    "bug_sink_without_maximum",
    "look_correction",
    "lse_largest_of_parts",
    "lse_maximum_added_twice",
    "lse_maximum_of_parts",
    "lse_maximum_unscaled",
    "lse_row_maximum_alone",
    "lse_without_maximum",
    "maximum_far_scores",
    "maximum_high_scores",
    "maximum_low_scores",
    "maximum_of_chunk",
    "maximum_over_chunks",
    "nan_of_row_sum",
    "passes_with_scores_near_0",
    "row_maximum_of_lanes",
)
RESCALE: Words = (
    "bug_both_rescaled_twice",
    "bug_fusion_l_alone",
    "bug_fusion_no_rescale",
    "bug_fusion_o_alone",
    "bug_inverse_rescale",
    "bug_l_rescaled_alone",
    "bug_l_rescaled_twice",
    "bug_mean_of_all_splits",
    "bug_mean_of_splits",
    "bug_no_online_rescale",
    "bug_o_rescaled_alone",
    "bug_o_rescaled_twice",
    "look_rescale_and_row",
    "nan_of_row_sum",
    "correction",
)
ROW_SUM: Words = (
    "bug_sink_not_in_row_sum",
    "look_division",
    "look_sink_in_row_sum",
    "lost_in_row_sum",
    "lost_precision_row",
    "nan_in_columns",
    "nan_of_row_sum",
    "not_of_row_sum",
    "row_sum_alone",
    "row_sum_l",
    "systematically_too_by",
)
DIVISION: Words = (
    "bug_divided_by_k_factor",
    "bug_divided_by_v_factor",
    "bug_mean_of_splits",
    "bug_not_divided",
    "bug_softcap_not_divided",
    "division_by_zero",
    "look_division",
    "lse_divided_by_scale",
    "nan_in_columns",
    "part_without_visible_key",
    "row_sum_l",
    "row_without_visible_key",
)
SCALE: Words = (
    "bug_no_scale",
    "bug_softcap_not_scaled",
    "bug_softcap_scaled_later",
    "factor_of_half_columns",
    "factor_of_twice_columns",
    "rounded_before_scale",
)
FACTOR: Words = (
    "bug_alibi_without_log2",
    "bug_divided_by_k_factor",
    "bug_divided_by_v_factor",
    "bug_factor_of",
    "bug_factors_exchanged",
    "bug_k_factor_on_v",
    "bug_k_factor_twice",
    "bug_no_factors",
    "bug_no_k_factor",
    "bug_no_v_factor",
    "bug_scores_by_factor",
    "bug_softcap_not_multiplied",
    "bug_softcap_without_log2",
    "bug_v_factor_on_k",
    "bug_v_factor_twice",
    "look_alibi_bias",
    "look_scale_and_factors",
    "looks_like_lost_precision",
    "lost_in_row_sum",
    "lost_precision_row",
    "past_factor_size",
    "rows_by_factor",
)
BASE: Words = (
    "gradient_lse_base_2",
    "head_offset_wrong",
    "look_scale_and_base",
    "look_scale_and_factors",
    "lse_base_2",
    "lse_natural",
    "log2",
    "exp2",
    "ln 2",
    "1.44",
    "0.69",
)
EXPONENT: Words = (
    "bug_softcap_without_log2",
    "gradient_exponent",
    "gradient_not_finite",
    "keep_s_in_float",
    "look_scale_and_base",
    "look_scale_and_factors",
)
WEIGHT: Words = (
    "against_the_rest",
    "bug_chunks_wrong_weights",
    "bug_inverse_weights",
    "bug_key_tiles_wrong_weights",
    "look_weights_and_sums",
    "systematically_too_by",
    "weights_of_fusion",
)
FUSION: Words = (
    "fusion_of",
    "look_loop_of_fusion",
    "look_partial_index",
    "look_weights_and_sums",
    "maximum_of_chunk",
    "no_cta_wrote",
    "weights_of_fusion",
)
PARTIAL: Words = ("look_partial_index", "lost_precision_sum", "no_cta_wrote")
WEIGHTS: Words = (*FUSION, *WEIGHT)
SPLITS: Words = (*WEIGHTS, *PARTIAL, "split")
PRECISION: Words = (
    "keep_s_in_float",
    "looks_like_lost_precision",
    "lost_in_row_sum",
    "lost_precision_row",
    "lost_precision_sum",
    "systematically_too_by",
)
OVER_D: Words = ("bug_scores_half_columns", "bug_scores_without_columns", "look_sum_over_d")

# ---- Places in memory ----
PAST_THE_END: Words = (
    "bug_reads_past_head",
    "gradient_not_finite",
    "index_without_cta",
    "nan_of_row_behind_end",
    "nan_of_unused_page",
    "past_factor_size",
)
OUT_OF_BOUNDS: Words = (ErrorKind.ARRAY_INDEX, ErrorKind.GLOBAL_BOUNDS, ErrorKind.SHARED_BOUNDS)
ANOTHER_HEAD: Words = (ErrorKind.GLOBAL_OTHER_HEAD,)
PADDING: Words = (
    "bug_missing_tail_mask",
    "bug_reads_past_head",
    "maximum_of_chunk",
    "one_padded_key",
)
BEYOND: Words = (*OUT_OF_BOUNDS, *PAST_THE_END, *PADDING, *ANOTHER_HEAD)
TAIL: Words = (*MASK, *PADDING, *LAST_KEY, *PAST_THE_END)
QUERY: Words = (
    "bug_alibi_from_row",
    "bug_alibi_from_tile",
    "bug_key_tiles_left_out",
    "bug_query_index",
    "bug_window_around_row",
    "bug_window_by_tiles",
    "bug_window_from_query_tile",
    "first_row_for_tile",
    "first_row_of_tile",
    "gradient_key_and_query",
    "gradient_key_behind_diagonal",
    "gradient_of_one_query_head",
    "gradient_position",
    "gradient_sum_over_heads",
    "gradient_without_diagonal",
    "heads_of_kv_head",
    "index_in_query_tile",
    "kv_by_query_head",
    "kv_head_by_query_head",
    "last_query_tile",
    "last_row_minus_key_tile",
    "last_tile_wrong",
    "look_end_of_causal_loop",
    "look_first_and_last_key_tile",
    "look_key_and_row_of_mask",
    "look_offset_of_mask",
    "look_query_row_loaded",
    "look_row_and_key_of_mask",
    "look_row_computed_and_stored",
    "look_row_of_mask",
    "mask_rows_of_one",
    "middle_row",
    "packed_row",
    "query_tile_wrong",
    "rows_in_tile_wrong",
    "rows_of_warp_wrong",
)
ROWS_MOVED: Words = ("lse_rows_exchanged",)
WRONG_QUERY: Words = (*QUERY, *ROWS_MOVED, ("bug_head_read", "Q"))
SEQUENCE: Words = ("batch", "sequence")
BATCH_AND_HEAD: Words = ("batch_and_head_exchanged", "offset_of_heads_wrong")
V_READ: Words = (
    "bug_takes_v_of",
    "bug_v_of_other_keys",
    ("bug_another_key_tile", "V"),
    ("bug_head_read", "V"),
    "look_v_of_key_tile",
)
SHARED_PLACE: Words = ("index_without_cta",)
LAYOUT: Words = (ErrorKind.UNSUPPORTED_WGMMA_LAYOUT, "look_swizzle_or_layout")
EXCHANGED: Words = (
    "bug_factors_exchanged",
    "bug_keys_of_p_exchanged",
    "fragments_in_column_of_p",
    "fragments_in_column_of_q",
    "fragments_in_column_of_v",
    "fragments_in_row_of_k",
    "fragments_in_row_of_p",
    "fragments_of_k_twice",
    "fragments_of_kv_twice",
    "fragments_of_p_off_diagonal",
    "fragments_of_q_off_diagonal",
    "fragments_of_v_twice",
    "mask_first_key",
    "second_of_two_keys",
)
LANES: Words = (*EXCHANGED, "column", "fragment", "operand")
PIECE: Words = ("bug_fragment_in_place", "bug_fragments")
PRODUCT_IN_32_BITS: Words = ("past_factor_size",)

# ---- Values ----
ZERO: Words = (
    "bug_head_with_zeros",
    "bug_longest_length",
    "bug_missing_tail_mask",
    "division_by_zero",
    "gradient_not_finite",
    "look_scores_overwritten",
    "one_padded_key",
    "rows_of_zeros",
    "zeros_written",
)
INFINITE: Words = (
    "baseline_not_finite",
    "elements_not_finite",
    "gradient_not_finite",
    "lse_not_finite",
    "nan_in",
    "nan_or_infinite",
)
OVERFLOW: Words = (ErrorKind.STACK_OVERFLOW, "maximum_high_scores", "nan_of_row_sum")
NEVER_WRITTEN: Words = (
    "elements_never_written",
    "lse_not_finite",
    "unwritten_all",
    "unwritten_part",
    "was_never_written",
    "were_never_written",
)
READ_UNWRITTEN: Words = (
    "gradient_not_finite",
    "nan_in_columns",
    "nan_of_row_behind_end",
    "nan_of_row_sum",
    "read_at_byte",
    "read_before_written",
)
UNINITIALISED: Words = (
    ErrorKind.GLOBAL_UNINITIALISED,
    ErrorKind.LOCAL_UNINITIALISED,
    ErrorKind.SHARED_UNINITIALISED,
    "read_at_byte",
)
UNWRITTEN: Words = (*UNINITIALISED, *NEVER_WRITTEN)
OVERWRITTEN: Words = (
    "copy_overwrites",
    "copy_overwrites_read",
    "gradient_overwritten",
    "look_scores_overwritten",
)
ACCUMULATOR: Words = (
    "accumulators_changed",
    "accumulators_in_use",
    "look_accumulated",
    "look_accumulator_stored",
)
LSE_MAXIMUM: Words = (
    "lse_largest_of_parts",
    "lse_maximum_added_twice",
    "lse_maximum_of_parts",
    "lse_maximum_unscaled",
    "lse_row_maximum_alone",
    "lse_without_maximum",
)
LSE_SPLIT: Words = ("lse_largest_of_parts", "lse_maximum_of_parts", "lse_of_keys")
LSE_UNWRITTEN: Words = ("lse_is_wrong", "lse_not_finite")
LSE_ROWS: Words = ("lse_at_wrong_rows",)

# ---- Order ----
RACE: Words = (ErrorKind.GLOBAL_RACE, ErrorKind.SHARED_RACE, "look_for_race", "sum_order_or_race")
SAME_PLACE: Words = (*SHARED_PLACE, *RACE, *NEVER_WRITTEN)
UNORDERED: Words = ("__sync", "barrier", *RACE)
COPY: Words = (
    ErrorKind.COPY_NOT_COMPLETE,
    "copy_counts_in_phase",
    "copy_overwrites",
    "copy_overwrites_read",
    "mbarrier_fence_missing",
    "mbarrier_last_copy",
    "not_ordered_with_copy",
    "read_before_copy",
    "read_before_wait",
)
WAITED: Words = (
    ErrorKind.OPEN_BARRIER,
    "accumulators_in_use",
    "copy_overwrites_read",
    "nothing_waited_for",
    "read_before_wait",
    "waited_for_no_mbarrier",
    "waited_for_other_barrier",
    "waited_for_other_phase",
    "wgmma_a_overwritten",
)
DIVERGENCE: Words = (
    ErrorKind.DIVERGENT_BARRIER,
    ErrorKind.WARPGROUP_DIVERGENCE,
    ErrorKind.WARP_DIVERGENCE,
    "barrier_diverges",
)
NAMED_BARRIER: Words = (
    "barrier_left_open",
    "barrier_not_there",
    "barrier_of_fewer_threads",
    "barrier_of_two_counts",
    "barrier_of_two_groups",
    "threads_wait_at_barrier",
)
INITIALISED: Words = (
    ErrorKind.MBARRIER_MISSING,
    ErrorKind.MBARRIER_TWICE,
    "arrival_after_phase",
    "mbarrier_fence_missing",
    "mbarrier_initialised_in",
    "no_mbarrier_here",
    "phase_arrivals_missing",
    "phase_left_open",
)
OTHER_PHASE: Words = ("waited_for_other_barrier", "waited_for_other_phase")
PHASE: Words = (*OTHER_PHASE, "phase", "arrive", "arrival")
ARRIVAL: Words = ("mbarrier", "arrive", "arrival", "phase", "parity")
GIVEN_BACK: Words = ("copy_overwrites_read", "wgmma_a_overwritten", "wgmma_reads_operand")
RETURN: Words = (
    "access_before_start",
    "cta_returned_before",
    "cta_threads_returned",
    "mbarrier_last_returned",
    "returned_before_store",
    "returned_before_wgmma",
)
SECOND_LAUNCH: Words = ("arrivals_left", "second_run_differs")

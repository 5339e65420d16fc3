"""Prints a gate's config that names no snapshot, so that it judges every given input."""

import json

SMALL = {
    "h2o_layer_start": 1, "h2o_block_tokens": 8, "h2o_sink_tokens": 4, "h2o_recent_tokens": 16,
    "h2o_trigger_min_tokens": 64, "h2o_target_lossy_ratio": 2.5, "h2o_lossless_block_tokens": 16,
    "h2o_lossless_hot_sink_tokens": 4, "h2o_lossless_hot_recent_tokens": 16,
    "h2o_lossless_store_bootstrap_tokens": 8, "h2o_lossless_store_grouped_step_tokens": 16,
    "h2o_lossless_front_sample_token_interval": 1,
}

CASES = [
    {"name": "evicted", "mode": "full", "rules": [
        {"metric": "whole_model_ratio", "op": ">=", "limit": 0.8},
        {"metric": "attention_error.mean", "op": "<=", "limit": 0.13},
        {"metric": "decode_drop_ratio", "op": "<=", "limit": 0.05}]},
    {"name": "stored", "mode": "store", "rules": [
        {"metric": "measured_ratio", "op": ">=", "limit": 1.02, "required": True},
        {"metric": "content.mismatches", "op": "<=", "limit": 0}]},
]

print(json.dumps({"schema": "kvtool.gate-config/1", "on_not_run": "warn",
                  "defaults": {"prompt_tokens": 64, "params": SMALL}, "cases": CASES}, indent=1))

# SPDX-License-Identifier: Apache-2.0
"""tools/bench vllm: what the connector for vLLM costs, measured without vLLM."""

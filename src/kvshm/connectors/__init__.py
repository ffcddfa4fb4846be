# SPDX-License-Identifier: Apache-2.0
"""Connectors of engines, one package each. Nothing here imports an engine before it is used."""

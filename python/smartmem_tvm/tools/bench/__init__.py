# SPDX-License-Identifier: Apache-2.0
"""Measuring models: several systems on one model, each in a process of its own, their runs taken in turns.

A *system* is whatever a ``prepare`` function makes of a request in the child process (see `child.System`). What
measures (`child`, `measure`, `turns`) knows neither TVM nor any other system. `systems` has those of
``smartmem bench``, `peers` those of other projects; `plan` says which are measured on a model, and what row of
`results` becomes of it.
"""

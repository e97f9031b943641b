# SPDX-License-Identifier: Apache-2.0
"""Measure several systems on one model, each in its own process, with their runs taken in turns.

A *system* is the object that a ``prepare`` function makes from a request in the child process (see `child.System`). The
modules that measure (`child`, `measure`, `turns`) depend neither on TVM nor on any other system. `systems` has those of
``smartmem bench``, `peers` those of other projects; `plan` selects the systems for a model and writes the row of
`results`.
"""

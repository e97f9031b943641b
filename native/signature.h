// SPDX-License-Identifier: Apache-2.0
// The parameters of a kernel, and the byte offsets of tensors in its buffers.
#pragma once

#include <string>
#include <vector>

namespace smartmem::opencl {

enum class Role { kBuffer, kImage, kNumber };

// Appends a parameter to a kernel's source for each of its buffers: the byte offset of the tensor in the buffer.
// Tensors of one allocation are then one object for the driver, which orders and moves memory object by object. The
// input is the source as TVM printed it; that is also the source that is saved, hashed and shown.
//
// `owners`, if not empty, has for each parameter the number of the parameter whose pointer it takes: its own, or that
// of an earlier buffer that is the same object in these launches. Only owners stay parameters, so that a launch has an
// object once, however many of its tensors are in it.
//
// Returns the roles of the original parameters; empty if the source is not in TVM's form, which then stays unchanged.
// Lines keep their numbers.
std::vector<Role> AddBegins(const std::string& name, std::string* code, const std::vector<size_t>& owners = {});

}  // namespace smartmem::opencl

// SPDX-License-Identifier: Apache-2.0
// The parameters of a kernel, and at which byte of its buffers tensors begin.
#pragma once

#include <string>
#include <vector>

namespace smartmem::opencl {

enum class Role { kBuffer, kImage, kNumber };

// Gives a kernel's source a number more for each of its buffers, behind its other parameters: at which byte of the buffer
// the tensor begins. So tensors of one allocation are one object for the driver, which orders and moves memory object by
// object. Done with the source as TVM printed it, which is what is saved, hashed and shown.
//
// `owners`, if there are any, say for each parameter which one's pointer it takes: its own number, or that of a buffer before
// it which is the same object in the launches that are meant. Only owners stay parameters, so that a launch has an object
// once, however many of its tensors lie in it.
//
// Returns what the parameters are that the source had; none where it has another form than TVM's, and then it stays as it
// is. Lines keep their numbers.
std::vector<Role> AddBegins(const std::string& name, std::string* code, const std::vector<size_t>& owners = {});

}  // namespace smartmem::opencl

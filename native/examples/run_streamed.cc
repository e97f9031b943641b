// SPDX-License-Identifier: Apache-2.0
// Runs a folder that was compiled with a memory budget, without Python:
//
//   run_streamed libtvm_runtime.so stream.so FOLDER ROWS COLUMNS < input > output
//
// The model has one float32 input of this shape and one output; both are raw numbers. Linked with libtvm_ffi only.
#include <dlfcn.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

using tvm::ffi::Function;
using tvm::ffi::Module;
using tvm::ffi::Tensor;

namespace {

struct Heap {
  void AllocData(DLTensor* tensor) { tensor->data = std::aligned_alloc(64, (tvm::ffi::GetDataSize(*tensor) + 63) / 64 * 64); }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

void Open(const char* library) {
  if (dlopen(library, RTLD_NOW | RTLD_GLOBAL) == nullptr) TVM_FFI_THROW(RuntimeError) << dlerror();
}

void Run(char** argv) {
  Open(argv[1]);
  Open(argv[2]);
  const std::string folder = argv[3];
  const Module machine =
      Module::LoadFromFile(folder + "/lib.so")->GetFunction("vm_load_executable").value()().cast<Module>();
  constexpr int kPooled = 2;  // TVM's allocator that keeps what it has
  machine->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, kPooled);
  const auto stream = Function::GetGlobalRequired("smartmem.stream.load")(folder);
  const Tensor input = Tensor::FromNDAlloc(Heap(), {std::atol(argv[4]), std::atol(argv[5])}, DLDataType{kDLFloat, 32, 1},
                                           DLDevice{kDLCPU, 0});
  const size_t bytes = tvm::ffi::GetDataSize(input);
  if (std::fread(input.data_ptr(), 1, bytes, stdin) != bytes) TVM_FFI_THROW(ValueError) << "the input is too short.";
  const Function main = machine->GetFunction("main").value();
  main(input, stream);
  const Tensor output = main(input, stream).cast<Tensor>();  // a second time: the plan is for many
  std::fwrite(output.data_ptr(), 1, tvm::ffi::GetDataSize(output), stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: " << argv[0] << " libtvm_runtime.so stream.so FOLDER ROWS COLUMNS < input > output\n";
    return 2;
  }
  try {
    Run(argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// The description of each kernel by TVM's code generator, and the byte format of a saved module.
//
// FunctionInfoObj repeats the fields of tvm/src/runtime/metadata.h of TVM 0.27 (the wheel lacks
// that header): objects made by TVM's compiler are read through it, so the order and the types of
// the fields, and the type key, must stay TVM's.
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/string.h>

namespace smartmem::opencl {

class FunctionInfoObj : public tvm::ffi::Object {
 public:
  tvm::ffi::String name;
  tvm::ffi::Array<DLDataType> arg_types;
  tvm::ffi::Array<tvm::ffi::String> launch_param_tags;
  tvm::ffi::Array<int> arg_extra_tags;

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("runtime.FunctionInfo", FunctionInfoObj, tvm::ffi::Object);
};

class FunctionInfo : public tvm::ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(FunctionInfo, tvm::ffi::ObjectRef, FunctionInfoObj);
};

using FunctionInfos = tvm::ffi::Map<tvm::ffi::String, FunctionInfo>;

struct ModuleData {
  tvm::ffi::String format;  // "cl": OpenCL C
  FunctionInfos functions;
  tvm::ffi::Bytes code;
};

// The same format as that of TVM's own OpenCL module.
tvm::ffi::Bytes Serialize(const ModuleData& data);
ModuleData Deserialize(const tvm::ffi::Bytes& bytes);

}  // namespace smartmem::opencl

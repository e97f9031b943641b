// SPDX-License-Identifier: Apache-2.0
// Registers the functions of this library, which can be called without Python.
#include <tvm/ffi/function.h>
#include <tvm/ffi/memory.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/reflection/registry.h>

#include <memory>
#include <utility>

#include "loader.h"
#include "plan_file.h"

namespace smartmem::stream {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Shape;
using tvm::ffi::String;

class WeightStreamObj : public tvm::ffi::Object {
 public:
  explicit WeightStreamObj(std::unique_ptr<Loader> loader) : loader(std::move(loader)) {}
  ~WeightStreamObj() {
    if (loader->Forked()) loader.release();
  }

  std::unique_ptr<Loader> loader;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("smartmem.stream.WeightStream", WeightStreamObj, tvm::ffi::Object);
};

class WeightStream : public tvm::ffi::ObjectRef {
 public:
  explicit WeightStream(tvm::ffi::ObjectPtr<WeightStreamObj> object) : ObjectRef(std::move(object)) {}
  Loader& loader() const { return *get()->loader; }

  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NOTNULLABLE(WeightStream, tvm::ffi::ObjectRef, WeightStreamObj);
};

WeightStream Open(const String& path, int64_t bytes) {
  return WeightStream(tvm::ffi::make_object<WeightStreamObj>(std::make_unique<Loader>(std::string(path), bytes)));
}

// Opens a stream with the plan that the model was compiled with.
WeightStream OpenFolder(const String& folder) {
  PlanFile file = ReadPlan(std::string(folder));
  WeightStream stream = Open(file.weights, file.weight_bytes);
  stream.loader().SetPlan(std::move(file.plan));
  return stream;
}

void SetPlan(const WeightStream& stream, int64_t arena_bytes, const Shape& offsets, const Shape& loads,
             const Array<String>& names, int64_t patience_ms) {
  Loader& loader = stream.loader();
  loader.SetPlan(Plan(loader.file_bytes(), arena_bytes, offsets, loads, names, patience_ms));
}

TVM_FFI_STATIC_INIT_BLOCK() {
  // Another copy of the library is already loaded: registering a name twice would end the process.
  if (tvm::ffi::Function::GetGlobal("smartmem.stream.open").has_value()) return;
  using Stream = const WeightStream&;
  tvm::ffi::reflection::ObjectDef<WeightStreamObj>();
  tvm::ffi::reflection::GlobalDef()
      .def("smartmem.stream.open", Open)
      .def("smartmem.stream.load", OpenFolder)
      .def("smartmem.stream.plan", SetPlan)
      .def("smartmem.stream.begin", [](Stream stream) { stream.loader().Begin(); })
      .def("smartmem.stream.tensor",
           [](Stream stream, int64_t index, const Shape& shape, DLDataType dtype) {
             return stream.loader().TensorOf(index, shape, dtype);
           })
      .def("smartmem.stream.weight",
           [](Stream stream, int64_t load, const Shape& shape, DLDataType dtype) {
             return stream.loader().WeightOf(load, shape, dtype);
           })
      .def("smartmem.stream.rows",
           [](Stream stream, int64_t offset, int64_t count, const tvm::ffi::Tensor& ids, const tvm::ffi::Tensor& out) {
             stream.loader().Rows(offset, count, ids, out);
           })
      .def("smartmem.stream.done", [](Stream stream, int64_t step) { stream.loader().Done(step); })
      .def("smartmem.stream.end", [](Stream stream) { stream.loader().End(); })
      .def("smartmem.stream.timeline", [](Stream stream) { return stream.loader().Timeline(); })
      .def("smartmem.stream.loaded_bytes", [](Stream stream) { return stream.loader().LoadedBytes(); })
      .def("smartmem.stream.close", [](Stream stream) { stream.loader().Close(); });
}

}  // namespace
}  // namespace smartmem::stream

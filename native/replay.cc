// SPDX-License-Identifier: Apache-2.0
// Replay of sequences of kernels whose tensors have fixed places (transform/memory/capture_graphs.py): the virtual
// machine runs them twice, and from then on their launches are replayed without it, as TVM's vm.builtin.cuda_graph.* do
// for CUDA.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/runtime/tensor.h>
#include <tvm/runtime/vm/vm.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "recording.h"
#include "register.h"

namespace smartmem::opencl {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Array;
using tvm::ffi::ObjectRef;
using tvm::runtime::vm::VirtualMachine;

// The arguments of a captured function, its result, and its recorded launches.
struct Run {
  Array<Any> arguments;  // kept alive, so that no other tensor gets the address of one of them
  Any result;
  std::unique_ptr<Recording> recording;
};

// Whether this thread replays. It is off while a caller observes each launch, which the virtual machine then makes.
thread_local bool replays = true;

bool Same(const Array<Any>& one, const Array<Any>& other) {
  if (one.size() != other.size()) return false;
  for (size_t i = 0; i < one.size(); ++i) {
    if (one[i].same_as(other[i])) continue;
    const auto *a = one[i].as<tvm::ffi::TensorObj>(), *b = other[i].as<tvm::ffi::TensorObj>();
    if (a == nullptr || b == nullptr || a->data != b->data) return false;
  }
  return true;
}

// The state of one virtual machine, which runs on one thread at a time.
class ReplayNode : public tvm::runtime::vm::VMExtensionNode {
 public:
  Any Allocated(VirtualMachine* machine, const ObjectRef& function, int64_t entry) {
    auto known = allocated_.find(entry);
    if (known == allocated_.end()) known = allocated_.emplace(entry, Called(machine, function, {})).first;
    return known->second;
  }

  Any RunOrReplay(VirtualMachine* machine, const ObjectRef& function, const Array<Any>& arguments, int64_t entry) {
    if (!replays) return Called(machine, function, arguments);
    Run& run = runs_[entry];
    if (run.result == nullptr || !Same(run.arguments, arguments)) {
      run = Run{arguments, Called(machine, function, arguments), nullptr};
    } else if (run.recording == nullptr) {
      auto recording = std::make_unique<Recording>();
      {
        const Recording::Scope scope(recording.get());
        run.result = Called(machine, function, arguments);
      }
      recording->Finish(GetDevice(machine->devices.at(0).device_id));
      run.recording = std::move(recording);
    } else if (run.recording->whole()) {
      run.recording->Launch(CurrentStream(machine->devices.at(0).device_id));
    } else {
      run.result = Called(machine, function, arguments);
    }
    return run.result;
  }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("smartmem.opencl.Replay", ReplayNode, tvm::runtime::vm::VMExtensionNode);

 private:
  static Any Called(VirtualMachine* machine, const ObjectRef& function, const Array<Any>& arguments) {
    const std::vector<AnyView> views(arguments.begin(), arguments.end());
    Any result;
    machine->InvokeClosurePacked(
        function, tvm::ffi::PackedArgs(views.data(), static_cast<int32_t>(views.size())), &result);
    return result;
  }

  std::map<int64_t, Any> allocated_;
  std::map<int64_t, Run> runs_;
};

class Replay : public tvm::runtime::vm::VMExtension {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(Replay, tvm::runtime::vm::VMExtension, ReplayNode);
  static Replay Create() { return Replay(tvm::ffi::make_object<ReplayNode>()); }
};

ReplayNode* ReplayOf(VirtualMachine* machine) {
  return const_cast<ReplayNode*>(machine->GetOrCreateExtension<Replay>().operator->());
}

TVM_FFI_STATIC_INIT_BLOCK() {
  if (!FirstOpenCL()) return;
  tvm::ffi::reflection::GlobalDef()
      .def("smartmem.opencl.replay", [](bool on) { return std::exchange(replays, on); })
      .def_packed("vm.builtin.smartmem_replay.run",
                  [](tvm::ffi::PackedArgs args, Any* result) {
                    auto* machine = VirtualMachine::GetContextPtr(args[0]);
                    *result = ReplayOf(machine)->RunOrReplay(machine, args[1].cast<ObjectRef>(),
                                                             args[2].cast<Array<Any>>(), args[3].cast<int64_t>());
                  })
      .def_packed("vm.builtin.smartmem_replay.allocate", [](tvm::ffi::PackedArgs args, Any* result) {
        auto* machine = VirtualMachine::GetContextPtr(args[0]);
        *result = ReplayOf(machine)->Allocated(machine, args[1].cast<ObjectRef>(), args[2].cast<int64_t>());
      });
}

}  // namespace
}  // namespace smartmem::opencl

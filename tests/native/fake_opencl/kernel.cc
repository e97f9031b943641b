// SPDX-License-Identifier: Apache-2.0
// Kernels of the fake driver. What one does follows from its name: `copy...` and `add_one...`
// write float32 elements of the parameter `dst...` from those of `src...`, one element for each
// work item (one texel where an image is involved); any other kernel does nothing. A number
// `dst..._begin` or `src..._begin` is the byte of the buffer where they begin.
#include <cstring>
#include <regex>

#include "world.h"

namespace fake {
namespace {

size_t ScalarBytes(const std::string& type) {
  static const std::regex pattern(
      "\\b(char|uchar|bool|short|ushort|half|int|uint|float|long|ulong|double|size_t)(\\d*)\\b");
  std::smatch match;
  Require(std::regex_search(type, match, pattern), CL_INVALID_KERNEL_DEFINITION, type);
  std::string name = match[1];
  size_t bytes = 4;
  if (name == "char" || name == "uchar" || name == "bool") bytes = 1;
  if (name == "short" || name == "ushort" || name == "half") bytes = 2;
  if (name == "long" || name == "ulong" || name == "double" || name == "size_t") bytes = 8;
  return bytes * (match[2].length() == 0 ? 1 : std::stoul(match[2]));
}

Parameter ParseParameter(const std::string& text) {
  std::smatch match;
  static const std::regex last_word("(\\w+)\\s*$");
  Require(std::regex_search(text, match, last_word), CL_INVALID_KERNEL_DEFINITION, text);
  std::string name = match[1];
  if (text.find("image2d") != std::string::npos) return {Role::kImage, sizeof(cl_mem), name};
  if (text.find("local") != std::string::npos) return {Role::kLocal, 0, name};
  if (text.find('*') != std::string::npos) return {Role::kBuffer, sizeof(cl_mem), name};
  return {Role::kScalar, ScalarBytes(text.substr(0, match.position(1))), name};
}

// The parameters of `__kernel ... void name(...)`.
std::vector<Parameter> ParseParameters(const std::string& source, const std::string& name) {
  std::regex head("kernel\\s+(__attribute__\\s*\\(\\(.*?\\)\\)\\s*)?void\\s+"
                  "(__attribute__\\s*\\(\\(.*?\\)\\)\\s*)?" + name + "\\s*\\(([^)]*)\\)");
  std::smatch match;
  Require(std::regex_search(source, match, head), CL_INVALID_KERNEL_NAME, name);
  std::vector<Parameter> parameters;
  for (const std::string& text : Split(match[3], ',')) parameters.push_back(ParseParameter(text));
  return parameters;
}

std::shared_ptr<Memory> MemoryArgument(const Kernel& kernel, size_t index) {
  cl_mem handle = nullptr;
  std::memcpy(&handle, kernel.arguments[index].value.data(), sizeof(handle));
  if (handle == nullptr) return nullptr;
  return kernel.parameters[index].role == Role::kImage ? FindImage(handle) : FindBuffer(handle);
}

// The memory of the first parameter whose name begins like this.
std::shared_ptr<Memory> Named(const Kernel& kernel, const std::string& prefix) {
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    bool memory = kernel.parameters[i].role <= Role::kImage;
    if (memory && kernel.parameters[i].name.starts_with(prefix)) return MemoryArgument(kernel, i);
  }
  throw Refusal{CL_INVALID_KERNEL_ARGS, kernel.name + " has no memory " + prefix};
}

// The byte where the elements of such a parameter begin.
size_t Begin(const Kernel& kernel, const std::string& prefix) {
  uint64_t begin = 0;
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    const std::string& name = kernel.parameters[i].name;
    bool number = kernel.parameters[i].role == Role::kScalar && name.find("_begin") != name.npos;
    if (!number || !name.starts_with(prefix)) continue;
    std::memcpy(&begin, kernel.arguments[i].value.data(), sizeof(begin));
  }
  return begin;
}

size_t Elements(const Memory& memory) {
  if (!memory.image) return memory.bytes / sizeof(float);
  return 4 * memory.size[0] * memory.size[1] * memory.size[2];
}

float* Element(const Memory& memory, size_t index) {
  size_t offset = index * sizeof(float);
  if (memory.image) {
    size_t texel = index / 4, x = texel % memory.size[0], y = texel / memory.size[0];
    offset = x * memory.pixel + y % memory.size[1] * memory.row +
             y / memory.size[1] * memory.slice + index % 4 * sizeof(float);
  }
  return reinterpret_cast<float*>(memory.data() + offset);
}

std::function<void()> Behaviour(const Kernel& kernel, size_t items) {
  bool adds = kernel.name.starts_with("add_one");
  if (!adds && !kernel.name.starts_with("copy")) return [] {};
  auto to = Named(kernel, "dst"), from = Named(kernel, "src");
  Require(to != nullptr && from != nullptr, CL_INVALID_KERNEL_ARGS, "null memory");
  bool texels = to->image || from->image;
  size_t count = texels ? 4 * items : items;
  size_t there = Begin(kernel, "dst") / sizeof(float), here = Begin(kernel, "src") / sizeof(float);
  bool inside = there + count <= Elements(*to) && here + count <= Elements(*from);
  Require(inside, CL_OUT_OF_RESOURCES, kernel.name + " reads or writes past the end");
  return [=] {
    for (size_t i = 0; i < count; ++i) {
      *Element(*to, there + i) = *Element(*from, here + i) + (adds ? 1.0F : 0.0F);
    }
  };
}

void CheckSizes(cl_uint dims, const size_t* global, const size_t* local) {
  Require(dims >= 1 && dims <= 3, CL_INVALID_WORK_DIMENSION, std::to_string(dims));
  Require(global != nullptr, CL_INVALID_GLOBAL_WORK_SIZE, "none");
  size_t group = 1;
  for (cl_uint i = 0; i < dims; ++i) {
    Require(global[i] > 0, CL_INVALID_GLOBAL_WORK_SIZE, "0");
    if (local == nullptr) continue;
    size_t limit = i == 2 ? 64 : Config().work_group;
    Require(local[i] > 0, CL_INVALID_WORK_GROUP_SIZE, "0");
    Require(local[i] <= limit, CL_INVALID_WORK_ITEM_SIZE, std::to_string(local[i]));
    Require(global[i] % local[i] == 0, CL_INVALID_WORK_GROUP_SIZE, "does not divide");
    group *= local[i];
  }
  Require(group <= Config().work_group, CL_INVALID_WORK_GROUP_SIZE, std::to_string(group));
}

void CheckArguments(const Kernel& kernel, const Context& context) {
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    Require(kernel.arguments[i].set, CL_INVALID_KERNEL_ARGS, "argument " + std::to_string(i));
    if (kernel.parameters[i].role > Role::kImage) continue;
    auto memory = MemoryArgument(kernel, i);
    bool here = memory == nullptr || memory->context.get() == &context;
    Require(here, CL_INVALID_CONTEXT, "argument " + std::to_string(i) + " is another context's");
  }
}

// Of a launch: what a driver takes up, once for each argument.
int64_t MemoryObjects(const Kernel& kernel) {
  int64_t count = 0;
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    count += kernel.parameters[i].role <= Role::kImage && MemoryArgument(kernel, i) != nullptr;
  }
  return count;
}

// Arguments belong to the kernel, not to the launch: two threads that set them for launches of
// their own, without a lock around both, launch each other's.
void NoteThread(Kernel& kernel, bool launch) {
  std::thread::id me = std::this_thread::get_id(), nobody;
  if (kernel.setter != nobody && kernel.setter != me) ++TheWorld().kernel_races;
  kernel.setter = launch ? nobody : me;
}

}  // namespace
}  // namespace fake

using namespace fake;

FAKE_EXPORT cl_kernel clCreateKernel(cl_program program, const char* name, cl_int* error) {
  return Create(__func__, error, [&] {
    auto kernel = std::make_shared<Kernel>();
    kernel->program = Find<Program>(program);
    Require(name != nullptr, CL_INVALID_VALUE, "no name");
    Require(kernel->program->built, CL_INVALID_PROGRAM_EXECUTABLE, "the program is not built");
    kernel->name = name;
    kernel->parameters = ParseParameters(kernel->program->source, name);
    kernel->arguments.resize(kernel->parameters.size());
    return Add<cl_kernel>(kernel);
  });
}

FAKE_EXPORT cl_int clSetKernelArg(cl_kernel kernel, cl_uint index, size_t size,
                                  const void* value) {
  return Call(__func__, [&] {
    auto found = Find<Kernel>(kernel);
    NoteThread(*found, false);
    Require(index < found->parameters.size(), CL_INVALID_ARG_INDEX, std::to_string(index));
    const Parameter& parameter = found->parameters[index];
    bool local = parameter.role == Role::kLocal;
    Require(local ? size > 0 : size == parameter.size, CL_INVALID_ARG_SIZE,
            std::to_string(size) + " bytes for " + parameter.name);
    Require(local == (value == nullptr), CL_INVALID_ARG_VALUE, parameter.name);
    auto bytes = static_cast<const uint8_t*>(value);
    Argument argument{true, local ? std::vector<uint8_t>() : std::vector(bytes, bytes + size)};
    std::swap(found->arguments[index], argument);
    if (parameter.role <= Role::kImage) MemoryArgument(*found, index);
  });
}

FAKE_EXPORT cl_int clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id device, cl_uint what,
                                            size_t room, void* out, size_t* needed) {
  return Call(__func__, [&] {
    Find<Kernel>(kernel);
    Find<Device>(device);
    Require(what == CL_KERNEL_WORK_GROUP_SIZE, CL_INVALID_VALUE, "unknown question");
    AnswerValue(size_t{Config().work_group}, room, out, needed);
  });
}

FAKE_EXPORT cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dims,
                                          const size_t* offset, const size_t* global,
                                          const size_t* local, cl_uint waits,
                                          const cl_event* wait_list, cl_event* event) {
  return Call(__func__, [&] {
    auto found = Find<Kernel>(kernel);
    auto context = Find<Queue>(queue)->context;
    NoteThread(*found, true);
    Require(found->program->context == context, CL_INVALID_CONTEXT, "another context's kernel");
    Require(offset == nullptr, CL_INVALID_GLOBAL_OFFSET, "offsets are not expected");
    CheckSizes(dims, global, local);
    CheckArguments(*found, *context);
    TheWorld().calls["memory objects of launches"] += MemoryObjects(*found);
    size_t items = 1;
    for (cl_uint i = 0; i < dims; ++i) items *= global[i];
    Submit(queue, false, waits, wait_list, event, Config().kernel_ns, Behaviour(*found, items));
  });
}

FAKE_EXPORT cl_int clReleaseKernel(cl_kernel kernel) {
  return Call(__func__, [&] { Release<Kernel>(kernel); });
}

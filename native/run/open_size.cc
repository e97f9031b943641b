// SPDX-License-Identifier: Apache-2.0
#include "open_size.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

namespace smartmem::run {
namespace {

using Shape = std::vector<int64_t>;
using Places = std::vector<OpenPlace>;

std::string SpanText(const OpenRange& range, const OpenPlace& place) {
  std::string text = "(" + std::to_string(range.least) + ".." + std::to_string(range.most) + ")";
  return place.each > 1 ? text + "*" + std::to_string(place.each) : text;
}

std::string ShapeText(const Shape& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text.empty() ? "scalar" : text;
}

// Returns the inputs of a group with their ranges, for a sentence.
std::string GroupText(const Manifest& manifest, const OpenGroup& group) {
  std::string all;
  const std::vector<TensorInfo>& inputs = manifest.sizes[group.tiles.front().size].inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<std::string> dims;
    for (const int64_t size : inputs[i].shape) dims.push_back(std::to_string(size));
    for (const OpenPlace& each : group.along.inputs[i]) dims[each.axis] = SpanText(group.along, each);
    if (group.around) {
      for (const OpenPlace& each : group.around->inputs[i]) dims[each.axis] = SpanText(*group.around, each);
    }
    std::string shape;
    for (const std::string& each : dims) shape += (shape.empty() ? "" : "x") + each;
    all += (all.empty() ? "'" : ", '") + inputs[i].name + "' " + (shape.empty() ? "scalar" : shape);
  }
  return all;
}

[[noreturn]] void RefuseShapes(const Manifest& manifest, const std::vector<NamedShape>& shapes) {
  std::string asked, known;
  for (const auto& [name, shape] : shapes) asked += (asked.empty() ? "'" : ", '") + name + "' " + ShapeText(shape);
  for (const OpenGroup& each : manifest.open) known += (known.empty() ? "" : "; or ") + GroupText(manifest, each);
  TVM_FFI_THROW(ValueError) << "this model takes " << known << ", and " << asked << " came: give these shapes, or "
                            << "compile it for others.";
  __builtin_unreachable();
}

size_t InputNamed(const std::vector<TensorInfo>& inputs, const std::string& name) {
  std::string known;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].name == name) return i;
    known += (known.empty() ? "'" : ", '") + inputs[i].name + "'";
  }
  TVM_FFI_THROW(ValueError) << "the model has no input '" << name << "': use one of its names, "
                            << (known.empty() ? "none" : known) << ".";
  __builtin_unreachable();
}

bool IsAlong(const Places& places, size_t axis) {
  return std::any_of(places.begin(), places.end(), [&](const OpenPlace& each) { return each.axis == axis; });
}

// Returns whether shapes are those of a group but for its open dimensions.
bool Fits(const OpenGroup& group, const std::vector<TensorInfo>& inputs, const std::vector<NamedShape>& shapes) {
  for (const auto& [name, shape] : shapes) {
    const size_t i = InputNamed(inputs, name);
    if (shape.size() != inputs[i].shape.size()) return false;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const bool open = IsAlong(group.along.inputs[i], axis) || (group.around && IsAlong(group.around->inputs[i], axis));
      if (!open && shape[axis] != inputs[i].shape[axis]) return false;
    }
  }
  return true;
}

// Returns the count that all shapes with a place have; nothing if none has one. Throws if they are none of the range.
std::optional<int64_t> Counted(const Manifest& manifest, const OpenRange& range, const std::vector<TensorInfo>& inputs,
                               const std::vector<NamedShape>& shapes, const char* what) {
  std::optional<int64_t> count;
  std::string first;
  for (const auto& [name, shape] : shapes) {
    for (const OpenPlace& place : range.inputs[InputNamed(inputs, name)]) {
      const int64_t found = shape[place.axis] / place.each;
      if (found * place.each != shape[place.axis] || found < range.least || found > range.most) {
        RefuseShapes(manifest, shapes);
      }
      if (count && *count != found) {
        TVM_FFI_THROW(ValueError) << "input '" << first << "' has " << *count << " " << what << " and input '" << name
                                  << "' " << found << ": give both as many.";
      }
      if (!count) first = name;
      count = found;
    }
  }
  return count;
}

size_t Width(const TensorInfo& info) { return (static_cast<size_t>(info.kept.bits) * info.kept.lanes + 7) / 8; }

// Sets a shape, and the bytes that follow from it.
void Reshape(Shape shape, TensorInfo* info) {
  uint64_t bytes = Width(*info);
  bool fits = true;
  for (const int64_t size : shape) fits &= !__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes);
  if (!fits) TVM_FFI_THROW(ValueError) << "'" << info->name << "' would have more bytes than there are: give less.";
  info->shape = std::move(shape);
  info->bytes = bytes;
}

void Along(const Places& places, int64_t count, Shape* shape) {
  for (const OpenPlace& each : places) (*shape)[each.axis] = each.each * count;
}

// Returns a tensor with zeros that has so many items or positions.
HostTensor Sized(const TensorInfo& like, const Places& places, int64_t count) {
  HostTensor made{like, {}};
  Shape shape = like.shape;
  Along(places, count, &shape);
  Reshape(std::move(shape), &made.info);
  made.data.resize(made.info.bytes);
  return made;
}

// Returns the tiles that take the least time for a number of items, larger ones first, as `planner/tiles.py` does.
std::vector<const OpenTile*> Cover(const OpenGroup& group, int64_t count) {
  struct Best {
    int64_t cost = 0, before = 0;
    const OpenTile* tile = nullptr;
  };
  std::vector<Best> best(static_cast<size_t>(count) + 1);
  for (int64_t left = 1; left <= count; ++left) {
    Best& found = best[left];
    found.cost = std::numeric_limits<int64_t>::max();
    for (const OpenTile& tile : group.tiles) {
      const int64_t before = std::max<int64_t>(0, left - tile.items);
      int64_t cost;
      if (__builtin_add_overflow(best[before].cost, tile.cost, &cost)) continue;
      if (cost < found.cost) found = {cost, before, &tile};
    }
    if (found.tile == nullptr) TVM_FFI_THROW(ValueError) << "no tiles have so many items: compile the model again.";
  }
  std::vector<const OpenTile*> tiles;
  for (int64_t left = count; left > 0; left = best[left].before) tiles.push_back(best[left].tile);
  const auto larger = [](const OpenTile* one, const OpenTile* other) { return one->items > other->items; };
  std::stable_sort(tiles.begin(), tiles.end(), larger);
  return tiles;
}

// A tensor as rows of items: `outer` times its items, each of `bytes`.
struct Rows {
  size_t outer, bytes;

  Rows(const TensorInfo& info, const OpenPlace& place) : outer(1), bytes(Width(info) * place.each) {
    for (size_t axis = 0; axis < place.axis; ++axis) outer *= info.shape[axis];
    for (size_t axis = place.axis + 1; axis < info.shape.size(); ++axis) bytes *= info.shape[axis];
  }
};

// Returns `items` items of a tensor that has `count`, from the first one on; beyond the last one, that one again.
HostTensor Taken(const HostTensor& whole, const Places& places, int64_t first, int64_t items, int64_t count) {
  if (places.empty()) return whole;
  HostTensor part = Sized(whole.info, places, items);
  const Rows rows(whole.info, places.front());
  char* to = part.data.data();
  for (size_t outer = 0; outer < rows.outer; ++outer) {
    for (int64_t item = 0; item < items; ++item, to += rows.bytes) {
      const size_t at = outer * count + std::min(first + item, count - 1);
      std::memcpy(to, whole.data.data() + at * rows.bytes, rows.bytes);
    }
  }
  return part;
}

[[noreturn]] void CompileAgain(const TensorInfo& info) {
  TVM_FFI_THROW(ValueError) << "output '" << info.name << "' has the shape " << ShapeText(info.shape) << ", in which "
                            << "its items are not where the folder says: compile the model again.";
  __builtin_unreachable();
}

// Puts items of a part, from `skipped` on, into a result of `count` items, from item `first` on.
void Put(const HostTensor& part, const Places& places, int64_t skipped, int64_t items, int64_t first, int64_t count,
         HostTensor* whole) {
  if (places.empty()) {
    if (first == 0) *whole = part;
    return;
  }
  const OpenPlace& place = places.front();
  if (place.axis >= part.info.shape.size() || part.info.shape[place.axis] < (skipped + items) * place.each ||
      part.info.shape[place.axis] % place.each != 0) {
    CompileAgain(part.info);
  }
  const int64_t there = part.info.shape[place.axis] / place.each;
  if (first == 0) *whole = Sized(part.info, places, count);
  const Rows rows(part.info, place);
  if (rows.outer * rows.bytes * count != whole->data.size()) CompileAgain(part.info);
  for (size_t outer = 0; outer < rows.outer; ++outer) {
    const char* from = part.data.data() + (outer * there + skipped) * rows.bytes;
    std::memcpy(whole->data.data() + (outer * count + first) * rows.bytes, from, items * rows.bytes);
  }
}

HostTensors RunItems(const AskedSize& asked, const HostTensors& inputs, const RunSize& run) {
  const OpenGroup& group = *asked.group;
  const int64_t count = asked.count;
  for (const OpenTile& tile : group.tiles) {
    if (tile.items == count) return run(tile.size, inputs, count);
  }
  HostTensors results(group.along.outputs.size());
  int64_t done = 0;
  for (const OpenTile* tile : Cover(group, count)) {
    const int64_t first = std::min(done, std::max<int64_t>(0, count - tile->items));
    HostTensors given;
    for (size_t i = 0; i < inputs.size(); ++i) {
      given.push_back(Taken(inputs[i], group.along.inputs[i], first, tile->items, count));
    }
    const HostTensors found = run(tile->size, given, tile->items);
    const int64_t skipped = done - first, kept = std::min(tile->items, count - first) - skipped;
    for (size_t i = 0; i < found.size(); ++i) {
      Put(found[i], group.along.outputs[i], skipped, kept, done, count, &results[i]);
    }
    done += kept;
  }
  return results;
}

// Copies the beginning of a tensor, up to `box` along each axis, to the beginning of another one.
void CopyBox(const char* from, const Shape& from_shape, char* to, const Shape& to_shape, const Shape& box, size_t width) {
  if (box.empty()) {
    std::memcpy(to, from, width);
    return;
  }
  Shape at(box.size(), 0);
  const size_t last = box.size() - 1;
  if (std::any_of(box.begin(), box.end(), [](int64_t size) { return size <= 0; })) return;
  while (true) {
    size_t source = 0, target = 0;
    for (size_t axis = 0; axis < box.size(); ++axis) {
      source = source * from_shape[axis] + at[axis];
      target = target * to_shape[axis] + at[axis];
    }
    std::memcpy(to + target * width, from + source * width, box[last] * width);
    size_t axis = last;
    while (axis > 0 && ++at[axis - 1] == box[axis - 1]) at[--axis] = 0;
    if (axis == 0) return;
  }
}

// Returns an input with zeros behind its positions.
HostTensor Longer(const HostTensor& given, const Places& places, int64_t capacity) {
  if (places.empty()) return given;
  HostTensor whole = Sized(given.info, places, capacity);
  CopyBox(given.data.data(), given.info.shape, whole.data.data(), whole.info.shape, given.info.shape, Width(given.info));
  return whole;
}

// Returns a result without what lies behind the length.
HostTensor BeforeLength(const HostTensor& whole, const Places& places, int64_t length) {
  if (places.empty()) return whole;
  Shape box = whole.info.shape;
  for (const OpenPlace& each : places) {
    if (each.axis >= box.size() || length + each.more < 0 || each.Of(length) > box[each.axis]) CompileAgain(whole.info);
    box[each.axis] = each.Of(length);
  }
  HostTensor part{whole.info, {}};
  Reshape(box, &part.info);
  part.data.resize(part.info.bytes);
  CopyBox(whole.data.data(), whole.info.shape, part.data.data(), box, box, Width(whole.info));
  return part;
}

AskedSize Asked(const Manifest& manifest, const OpenGroup& group, int64_t count, int64_t around) {
  AskedSize asked{&group, count, around, manifest.sizes[group.tiles.front().size].inputs};
  for (size_t i = 0; i < asked.inputs.size(); ++i) {
    Shape shape = asked.inputs[i].shape;
    Along(group.along.inputs[i], count, &shape);
    if (group.around) Along(group.around->inputs[i], around, &shape);
    Reshape(std::move(shape), &asked.inputs[i]);
  }
  return asked;
}

AskedSize OwnSize(const OpenGroup& group, const OpenTile& tile, const Manifest& manifest) {
  const int64_t count = std::clamp(tile.items, group.along.least, group.along.most);
  return Asked(manifest, group, count, group.around ? group.around->least : 1);
}

HostTensors RunPositions(const AskedSize& asked, const HostTensors& inputs, const RunSize& run) {
  const OpenGroup& group = *asked.group;
  const auto enough = [&](const OpenTile& tile) { return tile.items >= asked.count; };
  const OpenTile& tile = *std::find_if(group.tiles.begin(), group.tiles.end(), enough);  // the last one is
  HostTensors given, results;
  for (size_t i = 0; i < inputs.size(); ++i) given.push_back(Longer(inputs[i], group.along.inputs[i], tile.items));
  const HostTensors found = run(tile.size, given, asked.count);
  for (size_t i = 0; i < found.size(); ++i) {
    results.push_back(BeforeLength(found[i], group.along.outputs[i], asked.count));
  }
  return results;
}

}  // namespace

AskedSize Ask(const Manifest& manifest, const std::vector<NamedShape>& shapes) {
  for (const OpenGroup& group : manifest.open) {
    const std::vector<TensorInfo>& inputs = manifest.sizes[group.tiles.front().size].inputs;
    if (!Fits(group, inputs, shapes)) continue;
    const AskedSize own = OwnSize(group, group.tiles.front(), manifest);
    const auto count = Counted(manifest, group.along, inputs, shapes, group.length ? "positions" : "items");
    std::optional<int64_t> around;
    if (group.around) around = Counted(manifest, *group.around, inputs, shapes, "items");
    return Asked(manifest, group, count.value_or(own.count), around.value_or(own.around));
  }
  RefuseShapes(manifest, shapes);
}

AskedSize OwnSize(const Manifest& manifest, size_t size) {
  for (const OpenGroup& group : manifest.open) {
    for (const OpenTile& tile : group.tiles) {
      if (tile.size == size) return OwnSize(group, tile, manifest);
    }
  }
  TVM_FFI_THROW(ValueError) << "size " << size << " is none of the open dimension: compile the model again.";
  __builtin_unreachable();
}

HostTensors RunOpen(const AskedSize& asked, const HostTensors& inputs, const RunSize& run) {
  const OpenGroup& group = *asked.group;
  if (!group.length) return RunItems(asked, inputs, run);
  if (!group.around) return RunPositions(asked, inputs, run);
  HostTensors results(group.around->outputs.size());
  for (int64_t item = 0; item < asked.around; ++item) {
    HostTensors given;
    for (size_t i = 0; i < inputs.size(); ++i) {
      given.push_back(Taken(inputs[i], group.around->inputs[i], item, 1, asked.around));
    }
    const HostTensors found = RunPositions(asked, given, run);
    for (size_t i = 0; i < found.size(); ++i) {
      Put(found[i], group.around->outputs[i], 0, 1, item, asked.around, &results[i]);
    }
  }
  return results;
}

}  // namespace smartmem::run

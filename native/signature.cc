// SPDX-License-Identifier: Apache-2.0
#include "signature.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <sstream>

namespace smartmem::opencl {
namespace {

constexpr const char* kKernel = "__kernel ";

// From the first character of a parameter list to its closing parenthesis.
struct Range {
  size_t begin, end;
};

bool IsName(char sign) { return std::isalnum(static_cast<unsigned char>(sign)) != 0 || sign == '_'; }

// Returns the parameter lists of the prototype and of the definition of a kernel.
std::vector<Range> Lists(const std::string& name, const std::string& code) {
  std::vector<Range> found;
  for (size_t at = code.find(kKernel); at != code.npos; at = code.find(kKernel, at + 1)) {
    const size_t open = code.find(name + "(", at);
    if (open == code.npos) break;
    const bool same = code.find_first_of(";{", at) > open && !IsName(code[open - 1]);
    const size_t begin = open + name.size() + 1, end = code.find(')', begin);
    if (same && end != code.npos) found.push_back({begin, end});
  }
  return found;
}

Role RoleOf(const std::string& parameter) {
  if (parameter.find("image2d_array_t") != parameter.npos) return Role::kImage;
  const bool global = parameter.find("global ") != parameter.npos && parameter.find('*') != parameter.npos;
  return global ? Role::kBuffer : Role::kNumber;
}

// Splits a list into parameters without blanks around them; the last word of each is its name.
std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> parameters;
  std::stringstream stream(list);
  for (std::string each; std::getline(stream, each, ',');) {
    const size_t first = each.find_first_not_of(" \n"), last = each.find_last_not_of(" \n");
    parameters.push_back(first == each.npos ? "" : each.substr(first, last + 1 - first));
  }
  return parameters;
}

std::string NameOf(const std::string& parameter) {
  const auto sign = std::find_if_not(parameter.rbegin(), parameter.rend(), IsName);
  return std::string(sign.base(), parameter.end());
}

// Returns a suffix for names that does not occur in the source.
std::string Unused(std::string tail, const std::string& code) {
  while (code.find(tail) != code.npos) tail += "_";
  return tail;
}

// The new parameter list, with buffers renamed and offsets appended, and the declarations of the tensors' pointers.
struct Changed {
  std::string list, pointers;
};

bool IsConstant(const std::string& parameter) { return parameter.find("const ") < parameter.find('*'); }

// The pointer of a buffer that several parameters share: untyped, const only if all of them are. It is restrict, since
// no other parameter aliases the buffer; aliasing among its own tensors depends only on the pointers derived from it.
std::string Shared(const std::vector<std::string>& parameters, const std::vector<size_t>& owners, size_t owner) {
  bool constant = true;
  for (size_t i = owner; i < parameters.size(); ++i) constant &= owners[i] != owner || IsConstant(parameters[i]);
  return std::string("__global ") + (constant ? "const " : "") + "uchar* restrict " + NameOf(parameters[owner]);
}

Changed WithBegins(const std::vector<std::string>& parameters, const std::vector<size_t>& owners,
                   const std::string& whole, const std::string& begin) {
  Changed changed;
  std::string numbers;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string &each = parameters[i], name = NameOf(each), type = each.substr(0, each.find('*') + 1);
    const bool buffer = RoleOf(each) == Role::kBuffer;
    const bool shared = buffer && std::count(owners.begin(), owners.end(), i) > 1;
    if (owners.empty() || owners[i] == i) {
      changed.list += (changed.list.empty() ? "" : ", ") + (shared ? Shared(parameters, owners, i) : each);
      changed.list += buffer ? whole : "";
    }
    if (!buffer) continue;
    numbers += ", ulong " + name + begin;
    const std::string from = NameOf(parameters[owners.empty() ? i : owners[i]]) + whole;
    // Pointers to tensors keep their restrict: the ranges of tensors in one buffer do not overlap.
    changed.pointers += " " + each + " = (" + type + ")((__global " + (IsConstant(each) ? "const " : "") + "uchar*)" +
                        from + " + " + name + begin + ");";
  }
  changed.list += numbers;
  return changed;
}

}  // namespace

std::vector<Role> AddBegins(const std::string& name, std::string* code, const std::vector<size_t>& owners) {
  const std::vector<Range> lists = Lists(name, *code);
  if (lists.empty()) return {};
  const Range last = lists.back();
  const size_t body = code->find_first_not_of(" \n", last.end + 1);
  if (body == code->npos || (*code)[body] != '{') return {};
  const std::vector<std::string> parameters = Split(code->substr(last.begin, last.end - last.begin));
  if (!owners.empty() && owners.size() != parameters.size()) return {};
  const Changed changed = WithBegins(parameters, owners, Unused("_whole", *code), Unused("_begin", *code));
  code->insert(body + 1, changed.pointers);
  for (auto list = lists.rbegin(); list != lists.rend(); ++list) {
    code->replace(list->begin, list->end - list->begin, changed.list);
  }
  std::vector<Role> roles;
  std::transform(parameters.begin(), parameters.end(), std::back_inserter(roles), RoleOf);
  return roles;
}

}  // namespace smartmem::opencl

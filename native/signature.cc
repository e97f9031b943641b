// SPDX-License-Identifier: Apache-2.0
#include "signature.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <sstream>

namespace smartmem::opencl {
namespace {

constexpr const char* kKernel = "__kernel ";

// From the first sign of a parameter list to the parenthesis that closes it.
struct Range {
  size_t begin, end;
};

bool IsName(char sign) { return std::isalnum(static_cast<unsigned char>(sign)) != 0 || sign == '_'; }

// Where the prototype and the definition of a kernel have their parameters.
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

// Parameters without blanks at their ends, the last words of which are their names.
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

// A tail for names that is nowhere in the source.
std::string Unused(std::string tail, const std::string& code) {
  while (code.find(tail) != code.npos) tail += "_";
  return tail;
}

// The parameters with buffers under another name, their numbers behind them, and the pointers to where tensors begin.
struct Changed {
  std::string list, pointers;
};

Changed WithBegins(const std::vector<std::string>& parameters, const std::string& whole, const std::string& begin) {
  Changed changed;
  std::string numbers;
  for (const std::string& each : parameters) {
    const std::string name = NameOf(each), type = each.substr(0, each.find('*') + 1);
    const bool buffer = RoleOf(each) == Role::kBuffer;
    changed.list += (changed.list.empty() ? "" : ", ") + each + (buffer ? whole : "");
    if (!buffer) continue;
    numbers += ", ulong " + name + begin;
    // Both pointers stay restricted where they were: the ranges of tensors lie apart, also in one buffer.
    changed.pointers += " " + each + " = (" + type + ")((__global uchar*)" + name + whole + " + " + name + begin + ");";
  }
  changed.list += numbers;
  return changed;
}

}  // namespace

std::vector<Role> AddBegins(const std::string& name, std::string* code) {
  const std::vector<Range> lists = Lists(name, *code);
  if (lists.empty()) return {};
  const Range last = lists.back();
  const size_t body = code->find_first_not_of(" \n", last.end + 1);
  if (body == code->npos || (*code)[body] != '{') return {};
  const std::vector<std::string> parameters = Split(code->substr(last.begin, last.end - last.begin));
  const Changed changed = WithBegins(parameters, Unused("_whole", *code), Unused("_begin", *code));
  code->insert(body + 1, changed.pointers);
  for (auto list = lists.rbegin(); list != lists.rend(); ++list) {
    code->replace(list->begin, list->end - list->begin, changed.list);
  }
  std::vector<Role> roles;
  std::transform(parameters.begin(), parameters.end(), std::back_inserter(roles), RoleOf);
  return roles;
}

}  // namespace smartmem::opencl

// SPDX-License-Identifier: Apache-2.0
#include "npy_header.h"

#include <charconv>
#include <cstring>
#include <string_view>

namespace smartmem::run {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kMostDimensions = 64;

// Parses the subset of Python's dictionaries that numpy writes.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool Take(std::string_view word) {
    Skip();
    if (text_.substr(0, word.size()) != word) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  std::optional<std::string> Quoted() {
    if (!Take("'")) return std::nullopt;
    const size_t end = text_.find('\'');
    if (end == std::string_view::npos) return std::nullopt;
    std::string found(text_.substr(0, end));
    text_.remove_prefix(end + 1);
    return found;
  }

  std::optional<std::vector<int64_t>> Sizes() {
    if (!Take("(")) return std::nullopt;
    std::vector<int64_t> sizes;
    while (!Take(")")) {
      int64_t size = 0;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0 || sizes.size() == kMostDimensions) return std::nullopt;
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      sizes.push_back(size);
      if (!Take(",") && text_.substr(0, 1) != ")") return std::nullopt;
    }
    return sizes;
  }

  bool AtEnd() {
    Skip();
    return text_.empty();
  }

 private:
  void Skip() {
    const size_t next = text_.find_first_not_of(" \n");
    text_.remove_prefix(next == std::string_view::npos ? text_.size() : next);
  }

  std::string_view text_;
};

bool IsCode(const std::string& code) {
  return code.size() >= 3 && std::strchr("<>|=", code[0]) != nullptr && code.find('\0') == std::string::npos;
}

bool TakeValue(const std::string& key, Scanner* scanner, NpyHeader* header) {
  if (key == "descr") {
    const std::optional<std::string> code = scanner->Quoted();
    if (!code || !IsCode(*code)) return false;
    header->code = *code;
  } else if (key == "fortran_order") {
    header->fortran = scanner->Take("True");
    return header->fortran || scanner->Take("False");
  } else if (key == "shape") {
    const std::optional<std::vector<int64_t>> sizes = scanner->Sizes();
    if (!sizes) return false;
    header->shape = *sizes;
  } else {
    return false;
  }
  return true;
}

bool ParseDictionary(std::string_view text, NpyHeader* header) {
  Scanner scanner(text);
  if (!scanner.Take("{")) return false;
  int found = 0;
  while (!scanner.Take("}")) {
    const std::optional<std::string> key = scanner.Quoted();
    if (!key || !scanner.Take(":") || !TakeValue(*key, &scanner, header)) return false;
    scanner.Take(",");
    ++found;
  }
  return found == 3 && !header->code.empty() && scanner.AtEnd();
}

uint32_t Unsigned(const char* data, size_t bytes) {
  uint32_t number = 0;
  for (size_t i = 0; i < bytes; ++i) number |= uint32_t{static_cast<unsigned char>(data[i])} << 8 * i;
  return number;
}

}  // namespace

std::optional<NpyHeader> ParseHeader(const char* data, size_t bytes) {
  if (bytes < 12 || std::string_view(data, kMagic.size()) != kMagic) return std::nullopt;
  const size_t version = static_cast<unsigned char>(data[6]), width = version == 1 ? 2 : 4;
  if (version < 1 || version > 3) return std::nullopt;
  const size_t start = 8 + width, length = Unsigned(data + 8, width);
  if (length > kMostHeader || start + length > bytes) return std::nullopt;
  NpyHeader header;
  header.size = start + length;
  if (!ParseDictionary(std::string_view(data + start, length), &header)) return std::nullopt;
  return header;
}

std::string MakeHeader(const std::string& code, const std::vector<int64_t>& shape) {
  std::string sizes;
  for (const int64_t size : shape) sizes += std::to_string(size) + (shape.size() == 1 ? "," : ", ");
  if (shape.size() > 1) sizes.resize(sizes.size() - 2);
  std::string text = "{'descr': '" + code + "', 'fortran_order': False, 'shape': (" + sizes + "), }";
  constexpr size_t kBefore = 10, kAlignment = 64;
  text.append(kAlignment - (kBefore + text.size() + 1) % kAlignment, ' ');
  text += '\n';
  std::string head(kMagic);
  head += {1, 0, static_cast<char>(text.size() & 255), static_cast<char>(text.size() >> 8)};
  return head + text;
}

}  // namespace smartmem::run

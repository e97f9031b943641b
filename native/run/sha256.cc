// SPDX-License-Identifier: Apache-2.0
#include "sha256.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

namespace smartmem::run {
namespace {

constexpr size_t kBlock = 64;
constexpr size_t kPiece = 1 << 18;  // a multiple of the block

constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;

std::array<uint32_t, 64> Schedule(const unsigned char* block) {
  std::array<uint32_t, 64> words;
  for (size_t i = 0; i < 16; ++i) {
    words[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 | uint32_t{block[4 * i + 2]} << 8 |
               uint32_t{block[4 * i + 3]};
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t near = words[i - 2], far = words[i - 15];
    words[i] = (std::rotr(near, 17) ^ std::rotr(near, 19) ^ near >> 10) + words[i - 7] +
               (std::rotr(far, 7) ^ std::rotr(far, 18) ^ far >> 3) + words[i - 16];
  }
  return words;
}

void Add(const unsigned char* block, State* state) {
  const std::array<uint32_t, 64> words = Schedule(block);
  auto [a, b, c, d, e, f, g, h] = *state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) +
                           kRound[i] + words[i];
    const uint32_t second = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const State more = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) (*state)[i] += more[i];
}

// Adds the rest of the data, a one, zeros, and the number of bits.
void Finish(const unsigned char* rest, uint64_t total, State* state) {
  const size_t left = total % kBlock;
  std::vector<unsigned char> last(rest, rest + left);
  last.push_back(0x80);
  last.resize(left < kBlock - 8 ? kBlock : 2 * kBlock);
  for (size_t i = 0; i < 8; ++i) last[last.size() - 1 - i] = static_cast<unsigned char>(8 * total >> 8 * i);
  for (size_t at = 0; at < last.size(); at += kBlock) Add(&last[at], state);
}

std::string Hex(const State& state) {
  std::string text;
  for (const uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  }
  return text;
}

}  // namespace

std::string Sha256OfFile(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) return "";
  State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::vector<unsigned char> piece(kPiece);
  uint64_t total = 0;
  size_t got, at;
  do {
    got = std::fread(piece.data(), 1, kPiece, file.get());
    total += got;
    for (at = 0; at + kBlock <= got; at += kBlock) Add(&piece[at], &state);
  } while (got == kPiece);
  if (std::ferror(file.get()) != 0) return "";
  Finish(&piece[at], total, &state);
  return Hex(state);
}

}  // namespace smartmem::run

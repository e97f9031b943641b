// SPDX-License-Identifier: Apache-2.0
// What the CUDA of a matrix kernel needs to run on a CPU: a thread for each of CUDA's, and the instructions of PTX that
// TVM calls by name. Copies that run by themselves are made when they are waited for and no sooner, products of groups
// of warps too, so that a kernel that reads too early reads what was there before.
#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(x)
#define __shared__ static
#define __align__(x)
#define CUDART_INF_F INFINITY

using std::max;
using std::min;
using half = _Float16;
using uchar = unsigned char;
using uint = unsigned int;
using ushort = unsigned short;
struct Place { int x = 0; };
struct half2 { half x, y; };
struct alignas(8) half4 { half x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
struct float2 { float x, y; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(4) char4 { signed char x, y, z, w; };
struct alignas(4) uchar4 { unsigned char x, y, z, w; };
struct alignas(8) short4 { short x, y, z, w; };
struct alignas(8) ushort4 { unsigned short x, y, z, w; };
struct alignas(16) ulonglong4 { unsigned long long x, y, z, w; };  // eight floats
struct alignas(16) longlong4 { long long x, y, z, w; };
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline half2 make_half2(half x, half y) { return {x, y}; }
static inline half4 make_half4(half x, half y, half z, half w) { return {x, y, z, w}; }
inline half __float2half_rn(float x) { return half(x); }
inline half hrsqrt(half x) { return half(1 / std::sqrt(float(x))); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
struct alignas(16) uint4 { uint x, y, z, w; };  // eight halves
static inline uint4 make_uint4(uint x, uint y, uint z, uint w) { return {x, y, z, w}; }
inline uint __pack_half2(half low, half high) {
  const half2 both{low, high};
  uint word;
  std::memcpy(&word, &both, 4);
  return word;
}

struct nv_bfloat16 {  // a float without its last 16 bits
  nv_bfloat16() = default;
  nv_bfloat16(float x) {
    uint32_t word;
    std::memcpy(&word, &x, 4);
    bits = uint16_t(x == x ? (word + 0x7FFF + (word >> 16 & 1)) >> 16 : word >> 16 | 0x40);
  }
  operator float() const {
    const uint32_t word = uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &word, 4);
    return x;
  }
  uint16_t bits;
};
struct nv_bfloat162 { nv_bfloat16 x, y; };
struct alignas(8) nv_bfloat164 { nv_bfloat16 x, y, z, w; };
static inline nv_bfloat162 make_nv_bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return {x, y}; }
static inline nv_bfloat164 make_nv_bfloat164(nv_bfloat16 x, nv_bfloat16 y, nv_bfloat16 z, nv_bfloat16 w) { return {x, y, z, w}; }
inline nv_bfloat16 __float2bfloat16_rn(float x) { return nv_bfloat16(x); }

static thread_local Place threadIdx, blockIdx;
alignas(1024) static unsigned char memory[256 * 1024];
#define SHARED(type, name) type* name = reinterpret_cast<type*>(memory)

static std::unique_ptr<std::barrier<>> everyone;
struct Team {  // threads that execute an instruction together
  explicit Team(int n) : arrive(n) {}
  std::barrier<> arrive;
  uint32_t words[32][8];
};
static std::vector<std::unique_ptr<Team>> warps;

static thread_local std::vector<std::function<void()>> open_copies;
static thread_local std::deque<std::vector<std::function<void()>>> copies;
static thread_local std::vector<std::function<void()>> open_products;
static thread_local std::deque<std::vector<std::function<void()>>> products;

inline void finish(std::deque<std::vector<std::function<void()>>>& queue, size_t pending) {
  while (queue.size() > pending) {
    for (auto& each : queue.front()) each();
    queue.pop_front();
  }
}
inline float __nv_fdiv_rn(float x, float y) { return x / y; }
inline float __nv_fmaf(float x, float y, float z) { return std::fma(x, y, z); }
inline float __nv_tanhf(float x) { return std::tanh(x); }
inline void __syncthreads() { everyone->arrive_and_wait(); }
inline uint32_t tvm_builtin_cuda_cvta_generic_to_shared(const void* p) {
  return uint32_t(static_cast<const unsigned char*>(p) - memory);
}

inline void copy(uint32_t to, const void* from, uint32_t size, uint32_t there) {
  open_copies.push_back([=] {
    unsigned char* place = memory + int32_t(to);  // static shared memory may lie before the dynamic one
    std::memset(place, 0, size);
    std::memcpy(place, from, there);
  });
}
inline void commit_copies() { copies.push_back(std::move(open_copies)); open_copies.clear(); }
inline void wait_copies(int pending) { finish(copies, pending); }
inline void commit_products() { products.push_back(std::move(open_products)); open_products.clear(); }
inline void wait_products(int pending) { finish(products, pending); }

// Instructions read 19 bits of a float: its sign, its exponent and ten more.
inline float of_tf32(float x) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  word &= ~0x1FFFu;
  std::memcpy(&x, &word, 4);
  return x;
}
template <typename T>
using Total = std::conditional_t<std::is_integral_v<T>, int32_t, float>;
template <typename T>
inline Total<T> number(const void* place) {
  T x;
  std::memcpy(&x, place, sizeof(T));
  if constexpr (std::is_same_v<T, float>) return of_tf32(x);
  return Total<T>(x);
}
// Number n of those in a register.
template <typename T>
inline Total<T> part(uint32_t word, int n) { return number<T>(reinterpret_cast<unsigned char*>(&word) + n * sizeof(T)); }
inline int lane() { return threadIdx.x % 32; }
inline Team& warp() { return *warps[threadIdx.x / 32]; }

// Matrix i of eight rows of eight halves begins where lanes 8 i to 8 i + 7 say.
template <int N, bool transposed>
inline void load_fragments(uint32_t** words, uint32_t place) {
  auto& team = warp();
  team.words[lane()][0] = place;
  team.arrive.arrive_and_wait();
  for (int i = 0; i < N; ++i) {
    uint16_t pair[2];
    for (int n = 0; n < 2; ++n) {
      int row = lane() / 4, column = lane() % 4 * 2 + n;
      if (transposed) std::swap(row, column);
      std::memcpy(pair + n, memory + team.words[8 * i + row][0] + 2 * column, 2);
    }
    std::memcpy(words[i], pair, 4);
  }
  team.arrive.arrive_and_wait();
}

// A value of four neighbouring lanes combined, in each of them.
template <typename Combine>
inline float of_four(float value, Combine combine) {
  auto& team = warp();
  std::memcpy(&team.words[lane()][0], &value, 4);
  team.arrive.arrive_and_wait();
  float all[4];
  for (int n = 0; n < 4; ++n) std::memcpy(&all[n], &team.words[lane() / 4 * 4 + n][0], 4);
  team.arrive.arrive_and_wait();
  return combine(combine(all[0], all[1]), combine(all[2], all[3]));
}
inline float of_four_max(float value) {
  return of_four(value, [](float a, float b) { return max(a, b); });
}
inline float of_four_sum(float value) {
  return of_four(value, [](float a, float b) { return a + b; });
}

// The value of the lane whose number differs by these bits.
inline float __shfl_xor_sync(uint, float value, int bits, int) {
  auto& team = warp();
  std::memcpy(&team.words[lane()][0], &value, 4);
  team.arrive.arrive_and_wait();
  std::memcpy(&value, &team.words[lane() ^ bits][0], 4);
  team.arrive.arrive_and_wait();
  return value;
}

template <typename T, typename R, typename S>
inline void multiply(S* sums[4], const uint32_t* left, const uint32_t* right) {
  constexpr int each = 4 / sizeof(T), half_of = 4 * each;  // numbers of a register, and of half of the terms
  auto& team = warp();
  std::memcpy(team.words[lane()], left, 16);
  std::memcpy(team.words[lane()] + 4, right, 8);
  team.arrive.arrive_and_wait();
  for (int n = 0; n < 4; ++n) {
    const int row = lane() / 4 + n / 2 * 8, column = lane() % 4 * 2 + n % 2;
    S total = *sums[n];
    for (int k = 0; k < 2 * half_of; ++k) {
      const uint32_t a = team.words[row % 8 * 4 + k % half_of / each][row / 8 + k / half_of * 2];
      const uint32_t b = team.words[column * 4 + k % half_of / each][4 + k / half_of];
      total += part<T>(a, k % each) * part<R>(b, k % each);
    }
    *sums[n] = total;
  }
  team.arrive.arrive_and_wait();
}

// An element of a matrix in shared memory, as its descriptor says ("Matrix descriptor format" of the PTX ISA).
template <typename T>
inline Total<T> element(uint64_t matrix, int lane, int k, bool transposed) {
  const uint64_t start = (matrix & 0x3FFF) << 4, leading = (matrix >> 16 & 0x3FFF) << 4;
  const uint64_t stride = (matrix >> 32 & 0x3FFF) << 4, width = 256 >> (matrix >> 62);
  const int row = transposed ? k : lane, vec = transposed ? lane : k;
  const uint64_t inside = vec * sizeof(T) % width, block = vec * sizeof(T) / width;
  uint64_t place = start + block * leading + row / 8 * stride + row % 8 * width + inside;
  place ^= (place >> 7 & (width / 16 - 1)) << 4;
  return number<T>(memory + place);
}

// `left` gives elements by row and term when the product is done.
template <typename T, int N, typename S, typename Left>
inline void multiply_group(S** sums, Left left, uint64_t right, bool add, bool trans_right) {
  std::vector<S*> mine(sums, sums + N / 2);
  const int number = threadIdx.x % 128;
  open_products.push_back([=] {
    for (int n = 0; n < N / 2; ++n) {
      const int row = number / 32 * 16 + number % 32 / 4 + n % 4 / 2 * 8, column = n / 4 * 8 + number % 4 * 2 + n % 2;
      S total = add ? *mine[n] : 0;
      for (int k = 0; k < int(32 / sizeof(T)); ++k) total += left(row, k) * element<T>(right, column, k, trans_right);
      *mine[n] = total;
    }
  });
}

// -- the instructions by name; operands in the order of PTX -----------------------------------------------------------

template <bool transposed>
inline void ldmatrix(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t place) {
  uint32_t* words[] = {&a, &b, &c, &d};
  load_fragments<4, transposed>(words, place);
}
inline void load_word(uint32_t& word, uint32_t place) { std::memcpy(&word, memory + place, 4); }
inline void round_word(uint32_t& word, float x) {  // to the nearest, ties away from zero
  std::memcpy(&word, &x, 4);
  if (x - x == 0) word = (word + 0x1000) & ~0x1FFFu;
}
template <typename T, typename R = T, typename S>
inline void mma(S& s0, S& s1, S& s2, S& s3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, S, S,
                S, S) {
  S* sums[] = {&s0, &s1, &s2, &s3};
  const uint32_t left[] = {a0, a1, a2, a3}, right[] = {b0, b1};
  multiply<T, R>(sums, left, right);
}
template <typename T, int N, bool trans_left, bool trans_right, typename R = T, typename... All>
inline void wgmma(All&&... all) {
  auto given = std::forward_as_tuple(all...);
  std::remove_reference_t<std::tuple_element_t<0, decltype(given)>>* sums[N / 2];
  [&]<size_t... I>(std::index_sequence<I...>) { ((sums[I] = &std::get<I>(given)), ...); }(std::make_index_sequence<N / 2>());
  const uint64_t matrix = std::get<N / 2>(given);
  auto left = [=](int row, int k) { return element<T>(matrix, row, k, trans_left); };
  multiply_group<R, N>(sums, left, std::get<N / 2 + 1>(given), std::get<N / 2 + 2>(given), trans_right);
}
template <typename T, int N, bool trans_right, typename... All>
inline void wgmma_held(All&&... all) {
  auto given = std::forward_as_tuple(all...);
  float* sums[N / 2];
  [&]<size_t... I>(std::index_sequence<I...>) { ((sums[I] = &std::get<I>(given)), ...); }(std::make_index_sequence<N / 2>());
  const uint32_t mine[] = {std::get<N / 2>(given), std::get<N / 2 + 1>(given), std::get<N / 2 + 2>(given), std::get<N / 2 + 3>(given)};
  auto& team = warp();
  std::memcpy(team.words[lane()], mine, 16);
  team.arrive.arrive_and_wait();
  std::array<std::array<uint32_t, 4>, 32> words;
  for (int n = 0; n < 32; ++n) std::copy_n(team.words[n], 4, words[n].begin());
  team.arrive.arrive_and_wait();
  constexpr int each = 4 / sizeof(T), half_of = 4 * each;
  auto left = [=](int row, int k) {
    return part<T>(words[row % 8 * 4 + k % half_of / each][row % 16 / 8 + k / half_of * 2], k % each);
  };
  multiply_group<T, N>(sums, left, std::get<N / 2 + 4>(given), std::get<N / 2 + 5>(given), trans_right);
}
template <typename L, typename R, typename A, typename B>
inline void dp4a(int& total, A left, B right, int before) {
  L a[4];
  R b[4];
  std::memcpy(a, &left, 4);
  std::memcpy(b, &right, 4);
  total = before;
  for (int n = 0; n < 4; ++n) total += int(a[n]) * int(b[n]);
}
inline uint __dp4a(uint left, uint right, uint before) {
  int total;
  dp4a<uchar, uchar>(total, left, right, int(before));
  return uint(total);
}
template <uint32_t size>
inline void cp_async(uint32_t to, const void* from, uint32_t there = size) { copy(to, from, size, there); }
template <typename T>
inline void pack(uint32_t& word, float high, float low) {
  const T both[] = {T(low), T(high)};
  std::memcpy(&word, both, 4);
}
template <typename S>
inline void write_pair(uint32_t to, S a, S b) {
  const S both[] = {a, b};
  std::memcpy(memory + to, both, 8);
}
template <typename... S>
inline void write_words(uint32_t to, S... words) {
  const uint32_t all[] = {words...};
  std::memcpy(memory + to, all, sizeof(all));
}
template <typename S>
inline void read_four(S& a, S& b, S& c, S& d, uint32_t from) {
  S four[4];
  std::memcpy(four, memory + from, 16);
  a = four[0], b = four[1], c = four[2], d = four[3];
}

template <typename Kernel>
void run(int blocks, int threads, Kernel kernel) {
  for (int block = 0; block < blocks; ++block) {
    std::memset(memory, 0xFF, sizeof(memory));  // not numbers, to anyone who reads too early
    everyone = std::make_unique<std::barrier<>>(threads);
    warps.clear();
    for (int n = 0; n < threads / 32; ++n) warps.push_back(std::make_unique<Team>(32));
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t)
      all.emplace_back([=] { threadIdx.x = t; blockIdx.x = block; kernel(); });
    for (auto& each : all) each.join();
  }
}

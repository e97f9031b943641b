// SPDX-License-Identifier: Apache-2.0
// Loops that each do one thing that a CPU's model of time counts: `benchmarks/machine.py` compiles and times them.
//
// Vectors are as wide as the widest registers that the compiler is told of. Empty assembly keeps the compiler from
// leaving out, joining or moving an operation. Each function returns the seconds of processor time that it took.
#include <time.h>

#include <cmath>
#include <cstdint>
#include <utility>

// Older versions of clang spell the names without a second underscore.
#if (defined(__AMX_TILE__) && defined(__AMX_BF16__)) || (defined(__AMXTILE__) && defined(__AMXBF16__))
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_TILES 1
#endif

#if defined(__AVX512F__)
#define BYTES 64
#define IN_REGISTER(x) asm volatile("" : "+v"(x))
#elif defined(__AVX__)
#define BYTES 32
#define IN_REGISTER(x) asm volatile("" : "+x"(x))
#elif defined(__SSE__)
#define BYTES 16
#define IN_REGISTER(x) asm volatile("" : "+x"(x))
#else
#define BYTES 16
#define IN_REGISTER(x) asm volatile("" : "+w"(x))
#endif

namespace {

constexpr int kLanes = BYTES / 4;
using Vector = float __attribute__((vector_size(BYTES)));

double Now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Vector Filled(float value) {
  Vector result{};
  return result + value;
}

// Seconds of `count` calls of `body`.
template <typename Body>
double Timed(int64_t count, Body body) {
  const double start = Now();
  for (int64_t i = 0; i < count; ++i) body(i);
  return Now() - start;
}

// Calls `body` with 0 to `count` - 1, without a loop: arrays of vectors stay in registers.
template <int count, typename Body>
[[gnu::always_inline]] inline void Written(Body body) {
  [&]<int... n>(std::integer_sequence<int, n...>) { (body(n), ...); }(std::make_integer_sequence<int, count>());
}

template <int count, typename Body>
[[gnu::always_inline]] inline void Each(Vector (&x)[count], Body body) {
  [&]<int... n>(std::integer_sequence<int, n...>) { (body(x[n]), ...); }(std::make_integer_sequence<int, count>());
}

// Rotates the lanes of a vector by `by`.
template <int by>
Vector Rotated(Vector x) {
  return [&]<int... lane>(std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(x, x, ((lane + by) % kLanes)...);
  }(std::make_integer_sequence<int, kLanes>());
}

template <int by>
Vector AddedUp(Vector x) {
  if constexpr (by == 0) {
    return x;
  } else {
    x = x + Rotated<by>(x);
    IN_REGISTER(x);
    return AddedUp<by / 2>(x);
  }
}

#ifdef HAS_TILES
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

bool AllowTiles() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }
#endif

}  // namespace

extern "C" {

int Lanes() { return kLanes; }

// One addition after the other, 16 in a round: a cycle each, on every processor that has a model here. The summand is
// in a register: some processors add constants for nothing.
double Cycles(int64_t rounds) {
  uint64_t x = 1, summand = 3;
  asm volatile("" : "+r"(summand));
  return Timed(rounds, [&](int64_t) {
    Written<16>([&](int) {
      x += summand;
      asm volatile("" : "+r"(x));
    });
  });
}

// Eight multiplications with an addition, each on the result of the one before it.
double MultiplyAddInTurn(int64_t rounds) {
  Vector x = Filled(1.0f), factor = Filled(0.5f), summand = Filled(1.0f);
  IN_REGISTER(factor);
  IN_REGISTER(summand);
  return Timed(rounds, [&](int64_t) {
    Written<8>([&](int) {
      x = x * factor + summand;
      IN_REGISTER(x);
    });
  });
}

// Eight independent ones.
double MultiplyAdds(int64_t rounds) {
  Vector x[8], factor = Filled(0.5f), summand = Filled(1.0f);
  Each(x, [](Vector& each) { each = Filled(1.0f); });
  IN_REGISTER(factor);
  IN_REGISTER(summand);
  return Timed(rounds, [&](int64_t) {
    Each(x, [&](Vector& each) {
      each = each * factor + summand;
      IN_REGISTER(each);
    });
  });
}

// Four divisions of vectors.
double Divisions(int64_t rounds) {
  Vector above = Filled(1.0f), below = Filled(1.5f);
  return Timed(rounds, [&](int64_t) {
    Written<4>([&](int) {
      IN_REGISTER(below);
      Vector x = above / below;
      IN_REGISTER(x);
    });
  });
}

// Four divisions of elements.
double DivisionsOfElements(int64_t rounds) {
  float above = 1.0f, below = 1.5f;
  return Timed(rounds, [&](int64_t) {
    Written<4>([&](int) {
      IN_REGISTER(below);
      float x = above / below;
      IN_REGISTER(x);
    });
  });
}

// Eight exponentials of elements, by the C library.
double Exponentials(int64_t rounds) {
  float x = 0.3f;
  return Timed(rounds, [&](int64_t) {
    Written<8>([&](int) {
      IN_REGISTER(x);
      float y = expf(x);
      IN_REGISTER(y);
    });
  });
}

// Eight error functions of elements, by the C library.
double ErrorFunctions(int64_t rounds) {
  float x = 0.3f;
  return Timed(rounds, [&](int64_t) {
    Written<8>([&](int) {
      IN_REGISTER(x);
      float y = erff(x);
      IN_REGISTER(y);
    });
  });
}

// Eight independent rotations of vectors.
double Shuffles(int64_t rounds) {
  Vector x[8];
  Each(x, [](Vector& each) { each = Filled(1.0f); });
  return Timed(rounds, [&](int64_t) {
    Each(x, [&](Vector& each) {
      each = Rotated<1>(each);
      IN_REGISTER(each);
    });
  });
}

// Eight comparisons of vectors, each with a choice.
double Conditions(int64_t rounds) {
  Vector x[8], other = Filled(0.5f), instead = Filled(0.25f);
  Each(x, [](Vector& each) { each = Filled(1.0f); });
  IN_REGISTER(other);
  IN_REGISTER(instead);
  return Timed(rounds, [&](int64_t) {
    Each(x, [&](Vector& each) {
      each = each < other ? instead : each;
      IN_REGISTER(each);
    });
  });
}

// Four vectors whose lanes are added up, as halves, quarters and so on.
double LanesAddedUp(int64_t rounds) {
  Vector x[4];
  Each(x, [](Vector& each) { each = Filled(1e-30f); });
  return Timed(rounds, [&](int64_t) {
    Each(x, [&](Vector& each) {
      Vector sum = AddedUp<kLanes / 2>(each);
      IN_REGISTER(sum);
    });
  });
}

// Reads `bytes` bytes in order, `rounds` times.
double Reads(int64_t rounds, const float* data, int64_t bytes) {
  const auto* from = reinterpret_cast<const Vector*>(data);
  const int64_t count = bytes / BYTES / 8;
  const double start = Now();
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t i = 0; i < count; ++i) {
      Written<8>([&](int n) {
        Vector x = from[8 * i + n];
        IN_REGISTER(x);
      });
    }
  }
  return Now() - start;
}

// Writes `bytes` bytes in order, `rounds` times.
double Writes(int64_t rounds, float* data, int64_t bytes) {
  auto* to = reinterpret_cast<Vector*>(data);
  const int64_t count = bytes / BYTES / 8;
  Vector x = Filled(1.0f);
  const double start = Now();
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t i = 0; i < count; ++i) {
      IN_REGISTER(x);
      Written<8>([&](int n) { to[8 * i + n] = x; });
    }
    asm volatile("" : : "r"(to) : "memory");
  }
  return Now() - start;
}

// Removes `bytes` bytes from all caches; returns 0 where there is no instruction for that.
int Flush(const float* data, int64_t bytes) {
#if defined(__x86_64__)
  for (int64_t at = 0; at < bytes; at += 64) __builtin_ia32_clflush(reinterpret_cast<const char*>(data) + at);
  __builtin_ia32_mfence();
  return 1;
#else
  return 0;
#endif
}

// A step of 2 x 2 products of tiles, with the loads of two tiles a side; the right ones pass through `right_bytes`.
double TileProducts(int64_t rounds, const char* data, int64_t right_bytes) {
#ifdef HAS_TILES
  if (!AllowTiles()) return -1.0;
  const TileShapes shapes;
  _tile_loadconfig(&shapes);
  const int64_t steps = right_bytes / 2048;
  const char* right = data + 2048;
  const double start = Now();
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t step = 0; step < steps; ++step) {
      const char* at = right + step * 2048;
      _tile_loadd(4, data, 64);
      _tile_loadd(6, at, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, at + 1024, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, data + 1024, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  const double time = Now() - start;
  _tile_release();
  return time;
#else
  return -1.0;
#endif
}

// The same of bytes.
double ByteTileProducts(int64_t rounds, const char* data, int64_t right_bytes) {
#if defined(HAS_TILES) && (defined(__AMX_INT8__) || defined(__AMXINT8__))
  if (!AllowTiles()) return -1.0;
  const TileShapes shapes;
  _tile_loadconfig(&shapes);
  const int64_t steps = right_bytes / 2048;
  const char* right = data + 2048;
  const double start = Now();
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t step = 0; step < steps; ++step) {
      const char* at = right + step * 2048;
      _tile_loadd(4, data, 64);
      _tile_loadd(6, at, 64);
      _tile_dpbusd(0, 4, 6);
      _tile_loadd(7, at + 1024, 64);
      _tile_dpbusd(1, 4, 7);
      _tile_loadd(5, data + 1024, 64);
      _tile_dpbusd(2, 5, 6);
      _tile_dpbusd(3, 5, 7);
    }
  }
  const double time = Now() - start;
  _tile_release();
  return time;
#else
  return -1.0;
#endif
}

// The request for the tile registers, and their configuration, `rounds` times.
double TileStarts(int64_t rounds) {
#ifdef HAS_TILES
  if (!AllowTiles()) return -1.0;
  const TileShapes shapes;
  return Timed(rounds, [&](int64_t) {
    AllowTiles();
    _tile_loadconfig(&shapes);
    _tile_release();
  });
#else
  return -1.0;
#endif
}
}

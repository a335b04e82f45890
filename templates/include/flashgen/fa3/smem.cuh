#pragma once
// Shared memory of the Hopper forward. Python computes the same bytes (generator/feasibility.py); forward.cuh asserts that they agree.
#include <flashgen/attention/scheduler.cuh>
#include <flashgen/common/ptx.cuh>
#include <flashgen/common/smem_tile.cuh>

namespace flashgen::fa3 {

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

template <class Config>
struct Tiles {
  using Element = typename Config::Element;
  static constexpr int kPaddedQK = round_up(Config::kHeadDimQK, 16), kPaddedV = round_up(Config::kHeadDimV, 16);  // wgmma's K step is 16
  using Q = SmemTile<Element, 64, kPaddedQK>;  // of one consumer warpgroup
  using K = SmemTile<Element, Config::kBlockN, kPaddedQK>;
  using V = SmemTile<Element, Config::kBlockN, kPaddedV>;
  using Out = SmemTile<Element, 64, kPaddedV>;  // of one consumer warpgroup
  static_assert(!Config::kOutputOverQ || kPaddedV <= kPaddedQK, "the output does not fit over Q: its head dimension is larger");
};

template <class Config>
struct Inputs {
  using T = Tiles<Config>;
  alignas(1024) char q[Config::kConsumerWarpgroups * T::Q::kBytes];
  alignas(1024) char k[Config::kStages * T::K::kBytes];
  alignas(1024) char v[Config::kStages * T::V::kBytes];
};
// A tile of its own for the output lets its store go on while the next tile's Q arrives.
template <class Config>
struct InputsAndOutput : Inputs<Config> {
  alignas(1024) char out[Config::kConsumerWarpgroups * Tiles<Config>::Out::kBytes];
};

template <class Config>
struct Smem : cute::conditional_t<Config::kOutputOverQ, Inputs<Config>, InputsAndOutput<Config>> {
  using T = Tiles<Config>;
  static constexpr int kWarpgroups = Config::kConsumerWarpgroups, kStages = Config::kStages;

  alignas(16) TileCoordinate tile;
  // full: the data is there; empty: its readers are done.
  uint64_t q_full[kWarpgroups], q_empty[kWarpgroups], k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages], tile_full, tile_empty;

  __device__ __forceinline__ char* output(int warpgroup) {
    if constexpr (Config::kOutputOverQ) return this->q + warpgroup * T::Q::kBytes;
    else return this->out + warpgroup * T::Out::kBytes;
  }

  __device__ __forceinline__ void init_barriers() {
    for (int i = 0; i < kWarpgroups; ++i) {
      ptx::barrier_init(&q_full[i], 1);
      ptx::barrier_init(&q_empty[i], 1);
    }
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(&k_full[i], 1);
      ptx::barrier_init(&v_full[i], 1);
      ptx::barrier_init(&k_empty[i], kWarpgroups);
      ptx::barrier_init(&v_empty[i], kWarpgroups);
    }
    ptx::barrier_init(&tile_full, 1);
    ptx::barrier_init(&tile_empty, kWarpgroups * 128);  // NOTE: every thread reads `tile`; one arrival a warpgroup would be a race
    ptx::fence_barrier_init();
  }
};

// Named barriers; 0 is __syncthreads.
enum NamedBarrier : int {
  kTurn = 1,    // + warpgroup: its turn to issue products (ping-pong)
  kOutput = 4,  // + warpgroup: its output tile may be written / is written
};

}  // namespace flashgen::fa3

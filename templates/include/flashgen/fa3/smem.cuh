#pragma once
// Shared memory of the Hopper forward. Python computes the same bytes (generator/footprint.py); forward.cuh asserts that they agree.
#include <flashgen/attention/scheduler.cuh>
#include <flashgen/common/ptx.cuh>
#include <flashgen/common/smem_tile.cuh>

namespace flashgen::fa3 {

template <class Config>
struct Tiles {
  using Element = typename Config::Element;
  using Q = SmemTile<Element, 64, Config::kHeadDimQK, Config::kChunkQK>;  // of one consumer warpgroup
  using K = SmemTile<Element, Config::kBlockN, Config::kHeadDimQK, Config::kChunkQK>;
  using V = SmemTile<Element, Config::kBlockN, Config::kHeadDimV, Config::kChunkV>;
  using Out = SmemTile<Element, 64, Config::kHeadDimV, Config::kChunkV>;  // of one consumer warpgroup
  static constexpr int kStepsQK = (Config::kHeadDimQK + 15) / 16;         // products take K in steps of 16: zeros past the head dimension
};

template <class Config>
struct Inputs {
  using T = Tiles<Config>;
  alignas(1024) char q[Config::kStagesQ * Config::kConsumerWarpgroups * T::Q::kBytes];
  alignas(1024) char k[Config::kStages * T::K::kBytes];
  alignas(1024) char v[Config::kStages * T::V::kBytes];
};
// With a tile for the output, its store goes on by itself while the next tile's Q arrives.
template <class Config>
struct InputsAndOutput : Inputs<Config> {
  alignas(1024) char out[Config::kConsumerWarpgroups * Tiles<Config>::Out::kBytes];
};

template <class Config>
struct Smem : cute::conditional_t<Config::kOutputTile, InputsAndOutput<Config>, Inputs<Config>> {
  using T = Tiles<Config>;
  static constexpr int kWarpgroups = Config::kConsumerWarpgroups, kStages = Config::kStages, kTilesQ = Config::kStagesQ * kWarpgroups;

  TileCoordinate tile[2];  // the tile being computed and the next
  // full: the data is there; empty: its readers are done.
  uint64_t q_full[kTilesQ], q_empty[kTilesQ], k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages], tile_full[2], tile_empty[2];

  __device__ __forceinline__ void init_barriers() {
    for (int i = 0; i < kTilesQ; ++i) {
      ptx::barrier_init(&q_full[i], 1);
      ptx::barrier_init(&q_empty[i], 1);
    }
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(&k_full[i], 1);
      ptx::barrier_init(&v_full[i], 1);
      ptx::barrier_init(&k_empty[i], kWarpgroups);
      ptx::barrier_init(&v_empty[i], kWarpgroups);
    }
    for (int i = 0; i < 2; ++i) {
      ptx::barrier_init(&tile_full[i], 1);
      ptx::barrier_init(&tile_empty[i], kWarpgroups * 128);  // NOTE: every thread reads `tile`; one arrival a warpgroup would be a race
    }
    ptx::fence_barrier_init();
  }
};

// Named barriers; 0 is __syncthreads.
enum NamedBarrier : int {
  kTurn = 1,  // + warpgroup: its turn to issue products (ping-pong)
  kOwn = 4,   // + warpgroup: its own threads wait for each other
};

}  // namespace flashgen::fa3
